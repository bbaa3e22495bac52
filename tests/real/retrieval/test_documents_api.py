"""`/documents` over real servers and the real model: what is put is found, and what goes is gone."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from services.cli.postgres import EmbeddedPostgres
from services.retrieval.config import RetrievalSettings
from tests.real.retrieval.test_retrieval_service import GENEROUS_MS, Client, serve
from tests.retrieval.corpus import BREAD, RIVER, settings_for, take_in, unhurried, write

QUESTION = "How are gates opened at high water?"


@pytest.fixture
def settings(postgres_url: str, redis_url: str) -> RetrievalSettings:
    """Over both servers, empty, with a patience that no busy machine exhausts."""
    return unhurried(settings_for(postgres_url, redis_url, retrieval_budget_ms=GENEROUS_MS, document_max_chunks=4))


async def put(client: Client, doc_id: str, tenant: str = "demo", **fields: object) -> httpx2.Response:
    return await client.http.put(f"/documents/{doc_id}", json=fields, headers={"x-tenant": tenant})


async def delete(client: Client, doc_id: str, tenant: str = "demo") -> httpx2.Response:
    return await client.http.delete(f"/documents/{doc_id}", headers={"x-tenant": tenant})


async def listed(client: Client, tenant: str = "demo", **query: object) -> dict[str, Any]:
    answer = await client.http.get("/documents", params=query, headers={"x-tenant": tenant})
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def said(answer: httpx2.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def test_a_document_is_put_found_replaced_and_removed_and_no_cache_answers_from_what_was(
    settings: RetrievalSettings, model: Path
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        first = await put(client, "guides/weir.md", text=RIVER, media_type="text/markdown")
        assert first.status_code == 201
        assert {**first.json(), "version": 0} == {
            "id": "guides/weir.md", "state": "added", "title": "Weir", "version": 0, "chunks": 2,
        }  # fmt: skip
        await _until_cached(client, "Sluice gates open when the water rises.")

        second = await put(client, "guides/weir.md", text="Gates open at noon.", title="Hours")
        assert (second.status_code, second.json()["state"], second.json()["title"]) == (200, "updated", "Hours")
        assert second.json()["version"] > first.json()["version"]
        assert [passage["text"] for passage in (await client.retrieve(QUESTION))["results"]] == ["Gates open at noon."]
        await _until_cached(client, "Gates open at noon.")

        gone = await delete(client, "guides/weir.md")
        assert (gone.status_code, gone.json()["deleted"]) == (200, True)
        assert gone.json()["version"] > second.json()["version"]
        assert (await client.retrieve(QUESTION))["results"] == []
        assert said(await delete(client, "guides/weir.md")) == (404, "document_not_found", "id")

    serve(settings, model, scenario)


async def _until_cached(client: Client, text: str) -> None:
    async def cached() -> bool:
        reply = await client.retrieve(QUESTION)
        assert text in reply["results"][0]["text"]
        return bool(reply["source"] == "cache")

    await client.until(cached)


def test_the_same_document_again_embeds_nothing_and_leaves_the_version_alone(
    settings: RetrievalSettings, model: Path
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        first = (await put(client, "a", text=BREAD, title="Bread")).json()
        passes = await client.metric("weir_embed_seconds_count")
        again = await put(client, "a", text=BREAD, title="Bread")
        assert (again.status_code, again.json()) == (200, {**first, "state": "unchanged"})
        assert await client.metric("weir_embed_seconds_count") == passes
        for changed in ({"text": BREAD}, {"text": BREAD, "title": "B"}, {"text": BREAD, "media_type": "text/markdown"}):
            assert (await put(client, "a", **changed)).json()["state"] == "updated", changed
        content = base64.b64encode(BREAD.encode()).decode()
        same_bytes = await put(client, "a", content=content, media_type="text/markdown")
        assert same_bytes.json()["state"] == "unchanged"

    serve(settings, model, scenario)


def test_tenants_see_change_and_remove_only_their_own(settings: RetrievalSettings, model: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        await put(client, "plan", "acme", text="Acme's plan is a bridge.")
        assert (await put(client, "plan", "rival", text="The rival's plan is a tunnel.")).status_code == 201
        assert said(await delete(client, "plan", "nobody"))[:2] == (404, "document_not_found")
        assert (await listed(client, "nobody")) == {"documents": [], "next": None}
        mine = await client.retrieve("What is the plan?", "acme", top_k=50)
        assert [passage["text"] for passage in mine["results"]] == ["Acme's plan is a bridge."]
        await delete(client, "plan", "rival")
        assert [entry["id"] for entry in (await listed(client, "acme"))["documents"]] == ["plan"]

    serve(settings, model, scenario)


def test_a_list_comes_in_pages_and_an_ingest_leaves_what_was_put(
    settings: RetrievalSettings, model: Path, tmp_path: Path
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        await put(client, "z put", text=BREAD)
        await take_in(settings, write(tmp_path, a_md=RIVER, sub__b_md=BREAD))
        await take_in(settings, tmp_path)
        seen, after = [], ""
        while True:
            page = await listed(client, limit=2, **({"after": after} if after else {}))
            seen += [(entry["id"], entry["title"], entry["chunks"]) for entry in page["documents"]]
            assert len(page["documents"]) <= 2
            if page["next"] is None:
                break
            after = page["next"]
        assert seen == [("a.md", "Weir", 2), ("sub/b.md", "Bread", 1), ("z put", "z put", 1)]
        assert (await delete(client, "sub/b.md")).status_code == 200

    serve(settings, model, scenario)


def test_every_media_type_becomes_its_text(settings: RetrievalSettings, model: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        page = base64.b64encode(b"<head><title>Page</title></head><script>no()</script><p>Water &amp; gates.").decode()
        assert (await put(client, "html", content=page, media_type="text/html")).json()["title"] == "Page"
        levels = await put(client, "rst", text="Levels\n======\n\nWater.\n", media_type="text/x-rst")
        assert levels.json()["chunks"] == 1
        passages = (await client.retrieve("water", top_k=5))["results"]
        assert {passage["text"] for passage in passages} == {"Page\n\nWater & gates.", "Levels\n\nWater."}

    serve(settings, model, scenario)


MALFORMED: list[tuple[str, dict[str, object], str | None]] = [
    ("a", {}, "text"),
    ("a", {"text": "x", "content": "eA==", "media_type": "text/plain"}, "text"),
    ("a", {"text": ""}, "text"),
    ("a", {"text": 5}, "text"),
    ("a", {"content": "eA=="}, "media_type"),
    ("a", {"content": "no base64", "media_type": "text/plain"}, "content"),
    ("a", {"text": "x", "media_type": "application/pdf"}, "media_type"),
    ("a", {"text": "x", "media_type": "image/png"}, "media_type"),
    ("a", {"text": "x", "title": ""}, "title"),
    ("a", {"text": "x", "title": "x" * 513}, "title"),
    ("a", {"text": "x", "owner": "rival"}, "owner"),
    ("x" * 1025, {"text": "x"}, "id"),
    ("a%0ab", {"text": "x"}, "id"),
    ("a%ffb", {"text": "x"}, "id"),
]


def test_a_malformed_request_is_refused_by_the_name_of_its_field(settings: RetrievalSettings, model: Path) -> None:
    async def scenario(client: Client) -> None:
        for doc_id, body, param in MALFORMED:
            answer = await put(client, doc_id, **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (doc_id[:20], body)
        for query, param in (({"limit": 0}, "limit"), ({"limit": 501}, "limit"), ({"from": "a"}, "from")):
            answer = await client.http.get("/documents", params=query, headers={"x-tenant": "demo"})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        for headers in ({}, {"x-tenant": ""}, {"x-tenant": "x" * 129}):
            assert (await client.http.get("/documents", headers=headers)).json()["error"]["param"] == "X-Tenant"

    serve(settings, model, scenario)


def test_what_is_too_large_or_cannot_be_read_is_refused_and_leaves_the_old_one(
    settings: RetrievalSettings, model: Path
) -> None:
    small = settings.model_copy(update={"ingest_max_file_bytes": 20_000})

    async def scenario(client: Client) -> None:
        await client.until_ready()
        await put(client, "a", text=BREAD)
        assert said(await put(client, "a", text="x" * 20_001)) == (413, "request_too_large", "text")
        many = "\n\n".join([BREAD * 10] * 10)
        assert said(await put(client, "a", text=many)) == (413, "request_too_large", "content")
        broken = base64.b64encode(b"%PDF-1.4 no").decode()
        refused = await put(client, "a", content=broken, media_type="application/pdf")
        assert said(refused) == (422, "unreadable_document", "content")
        assert (await listed(client))["documents"][0]["chunks"] == 1

    serve(small, model, scenario)


def test_a_tenant_writes_one_document_at_a_time_and_one_whose_client_leaves_is_not_written(
    settings: RetrievalSettings, model: Path, postgres_url: str
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        holder = await asyncpg.connect(postgres_url)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE")
        first = asyncio.create_task(put(client, "first", text=BREAD))
        await client.until(lambda: _waits_for_a_lock(holder))
        busy = await put(client, "second", text=BREAD)
        assert said(busy)[:2] == (429, "yield")
        assert busy.json()["error"]["details"]["reason"] == "documents_busy"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        async def is_past_the_gate() -> bool:
            try:
                async with asyncio.timeout(0.5):
                    return (await put(client, "second", text=BREAD)).status_code != 429
            except TimeoutError:
                return True

        await client.until(is_past_the_gate)
        await transaction.rollback()

        async def is_written() -> bool:
            return (await put(client, "third", text=BREAD)).status_code == 201

        await client.until(is_written)
        assert [entry["id"] for entry in (await listed(client))["documents"]] == ["third"]
        await holder.close()

    serve(settings, model, scenario)


async def _waits_for_a_lock(connection: Any) -> bool:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'documents'::regclass"
    return bool(await connection.fetchval(waiting))


def test_without_a_database_documents_are_refused_and_come_again_with_it(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        postgres.kill()
        await client.until_ready("postgres")

        async def refused() -> bool:
            answer = await put(client, "a", text=BREAD)
            assert said(answer)[:2] == (503, "no_capacity")
            return bool(answer.json()["error"]["details"]["reason"] == "store_down")

        await client.until(refused)
        postgres.start()

        async def written() -> bool:
            return (await put(client, "a", text=BREAD)).status_code in (200, 201)

        await client.until(written)

    serve(settings, model, scenario)
