"""The whole service over a real PostgreSQL and a real Valkey: what it answers, and what their faults cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.cluster.processes import frozen
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval import store
from services.retrieval.app import build
from services.retrieval.config import RetrievalSettings
from services.retrieval.minilm import MiniLM
from services.runtime.serve import running
from tests.processes import runs
from tests.retrieval.corpus import BREAD, RIVER, settings_for, take_in, unhurried, write

GENEROUS_MS = 20_000.0
Scenario = Callable[["Client"], Awaitable[None]]


class Client:
    """Speaks to a running service."""

    def __init__(self, http: httpx2.AsyncClient, metrics_url: str) -> None:
        self.http = http
        self._metrics_url = metrics_url

    async def retrieve(self, query: str, tenant: str = "demo", **fields: object) -> dict[str, Any]:
        body = {"query": query, "tenant": tenant, "top_k": 2, "budget_ms": GENEROUS_MS, **fields}
        answer = await self.http.post("/retrieve", json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    async def ready(self) -> tuple[int, list[str]]:
        """Status, and what is missing."""
        answer = await self.http.get("/health/ready")
        return answer.status_code, answer.json()["degraded"]

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition rather than for a time; give up, loudly, after 20 s."""
        async with asyncio.timeout(20):
            while not await condition():
                await asyncio.sleep(0.02)

    async def until_ready(self, *degraded: str) -> None:
        async def as_wanted() -> bool:
            return await self.ready() == (200, list(degraded))

        await self.until(as_wanted)

    async def metric(self, name: str, **labels: str) -> float:
        text = (await self.http.get(self._metrics_url)).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(
            sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def serving(settings: RetrievalSettings, model: Path) -> AsyncIterator[Client]:
    async with running(build(settings, model)) as process:
        base = f"http://127.0.0.1:{process.bound_port}"
        async with httpx2.AsyncClient(base_url=base, timeout=30) as http:
            yield Client(http, f"http://127.0.0.1:{process.bound_metrics_port}/metrics")


def serve(settings: RetrievalSettings, model: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with serving(settings, model) as client:
            await scenario(client)

    asyncio.run(main())


@pytest.fixture
def settings(postgres_url: str, redis_url: str, tmp_path: Path) -> RetrievalSettings:
    """Over both servers, with a patience that no busy machine exhausts, and two documents of tenant demo."""
    made = unhurried(settings_for(postgres_url, redis_url, retrieval_budget_ms=GENEROUS_MS))
    asyncio.run(take_in(made, write(tmp_path, river_md=RIVER, bread_md=BREAD)))
    return made


def test_a_question_is_answered_from_the_database_then_from_the_cache(settings: RetrievalSettings, model: Path) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        first = await client.retrieve("How are gates opened at high water?")
        assert (first["source"], first["reason"]) == ("db", None)
        best = first["results"][0]
        assert (best["doc_id"], best["chunk_id"]) == ("river.md", "river.md#1")
        assert best["text"] == "Weir > Gates\n\nSluice gates open when the water rises."
        assert 0 <= best["distance"] < first["results"][1]["distance"] <= 2
        assert best["version"] > 0

        async def cached() -> bool:
            return (await client.retrieve("How are gates opened at high water?"))["source"] == "cache"

        await client.until(cached)
        second = await client.retrieve("How are gates opened at high water?")
        assert second["results"] == first["results"]
        assert await client.metric("weir_retrieval_seconds_count", source="db") >= 1
        assert await client.metric("weir_cache_total", result="hit") >= 2
        assert await client.metric("weir_dependency_up") == 2

    serve(settings, model, scenario)


def test_no_tenant_is_given_anothers_passages_even_for_the_same_words(
    settings: RetrievalSettings, model: Path, tmp_path: Path
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        await take_in(settings, write(tmp_path / "rival", plan_md="# Plan\n\nTheir secret plan."), tenant="rival")
        for _ in range(3):
            mine = await client.retrieve("What is the secret plan?", top_k=50)
            theirs = await client.retrieve("What is the secret plan?", "rival", top_k=50)
            nobodys = await client.retrieve("What is the secret plan?", "nobody", top_k=50)
            assert {passage["doc_id"] for passage in mine["results"]} == {"river.md", "bread.md"}
            assert {passage["doc_id"] for passage in theirs["results"]} == {"plan.md"}
            assert (nobodys["source"], nobodys["results"]) == ("db", [])

    serve(settings, model, scenario)


def test_documents_that_change_put_an_end_to_what_was_cached(
    settings: RetrievalSettings, model: Path, tmp_path: Path
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        await client.retrieve("What opens?", top_k=1)
        await take_in(settings, write(tmp_path, river_md="# Weir\n\n## Gates\n\nThe gates open at noon.\n"))

        async def new() -> bool:
            return "noon" in (await client.retrieve("What opens?", top_k=1))["results"][0]["text"]

        await client.until(new)

    serve(settings, model, scenario)


def test_a_frozen_database_delays_no_answer_and_is_used_again_when_it_thaws(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    """Every answer comes while the database is still frozen: nothing of theirs waited for it."""
    hasty = settings.model_copy(update={"retrieval_budget_ms": 300.0, "cache_ttl_s": 1.0})

    async def scenario(client: Client) -> None:
        await client.until_ready()
        await client.until(lambda: _is_stored(client, "What holds a river?", cache_ttl_s=60))
        with frozen(postgres.pid):
            replies = [await client.retrieve(f"Question {number}") for number in range(20)]
            assert {reply["source"] for reply in replies} == {"none"}
            reasons = {"budget_spent", "postgres_busy", "postgres_down", "embedder_busy"}  # the last where we stall
            assert {reply["reason"] for reply in replies} <= reasons
            await client.until(lambda: _answers(client, "What holds a river?", "stale"))
            await client.until_ready("postgres")
        await client.until_ready()
        await client.until(lambda: _answers(client, "Something new?", "db"))

    serve(hasty, model, scenario)


def test_a_lock_that_holds_up_the_search_costs_the_budget_and_no_connection(
    settings: RetrievalSettings, model: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops the search by itself, and says so: the connection is sound and stays."""
    for patience in ("GRACE_S", "CORPORA_BY_S"):  # what it says may come late where the machine stands still
        monkeypatch.setattr(store, patience, 20.0)
    hasty = settings.model_copy(update={"retrieval_budget_ms": 600.0})

    async def scenario(client: Client) -> None:
        await client.until_ready()
        holder = await asyncpg.connect(postgres_url)
        while len(before := await _connections(holder)) < settings.postgres_pool_size:
            await asyncio.sleep(0.02)
        async with holder.transaction():
            await holder.execute("LOCK TABLE chunks IN ACCESS EXCLUSIVE MODE")
            for number in range(4):
                reply = await client.retrieve(f"Question {number}")
                assert (reply["source"], reply["reason"]) == ("none", "budget_spent")
        await client.until(lambda: _answers(client, "Something new?", "db"))
        assert await _connections(holder) == before
        await holder.close()

    serve(hasty, model, scenario)


def test_a_database_that_is_down_at_the_start_is_named_and_joined_when_it_comes(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    postgres.stop()

    async def scenario(client: Client) -> None:
        async def warm() -> bool:
            return await client.ready() == (503, ["postgres"])

        await client.until(warm)
        health = await client.http.get("/health")
        assert health.status_code == 200
        reply = await client.retrieve("What holds a river?")
        assert (reply["source"], reply["reason"]) == ("none", "postgres_down")
        await asyncio.to_thread(postgres.prepare)
        postgres.spawn()
        assert await asyncio.to_thread(postgres.wait_ready)
        await client.until_ready()
        assert (await client.retrieve("What holds a river?"))["source"] == "db"

    serve(settings, model, scenario)


def test_a_database_that_is_killed_and_restarted_is_joined_again(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(client: Client) -> None:
        await client.until_ready()
        await client.until(lambda: _is_stored(client, "What holds a river?"))
        postgres.kill()
        await client.until_ready("postgres")
        assert (await client.retrieve("What holds a river?"))["source"] == "cache"
        stale = await client.retrieve("What holds a river?", cache_ttl_s=0)
        assert (stale["source"], stale["reason"]) == ("stale", "postgres_down")
        assert stale["results"][0]["doc_id"] == "river.md"
        postgres.start()
        await client.until_ready()
        assert (await client.retrieve("Something new?"))["source"] == "db"

    serve(settings, model, scenario)


def test_without_redis_answers_come_from_the_database(
    settings: RetrievalSettings, model: Path, redis: EmbeddedValkey
) -> None:
    redis.stop()

    async def scenario(client: Client) -> None:
        await client.until_ready("redis")
        for _ in range(5):
            assert (await client.retrieve("What holds a river?"))["source"] == "db"
        redis.start()
        await client.until_ready()
        await client.until(lambda: _answers(client, "What holds a river?", "cache"))

    serve(settings, model, scenario)


def test_texts_are_embedded_in_order_with_their_exact_tokens(settings: RetrievalSettings, model: Path) -> None:
    texts = ["A weir holds a river.", "bread", "A weir holds a river."]
    minilm = MiniLM(model)

    async def scenario(client: Client) -> None:
        await client.until_ready()
        reply = (await client.http.post("/embed", json={"input": texts})).json()
        assert (reply["model"], reply["dimensions"]) == ("all-MiniLM-L6-v2", 384)
        assert reply["tokens"] == sum(len(minilm.tokenize(text)) for text in texts)
        expected = minilm.embed([minilm.tokenize(text) for text in texts])
        assert abs(expected - reply["vectors"]).max() < 1e-5

    serve(settings, model, scenario)


def model_processes() -> set[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return {child for child in children if runs(child, "services.retrieval.modelprocess")}


def test_a_model_process_that_dies_is_refused_with_a_reason_and_started_again(
    settings: RetrievalSettings, model: Path
) -> None:
    others = model_processes()

    async def scenario(client: Client) -> None:
        await client.until_ready()
        (own,) = model_processes() - others
        own.kill()

        async def embeds_again() -> bool:
            reply = await client.http.post("/embed", json={"input": ["bread"]})
            if reply.status_code != 200:
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (503, "no_capacity")
                assert error["details"]["reason"] in ("embedder_failed", "warming")
            return reply.status_code == 200

        await client.until(embeds_again)

    serve(settings, model, scenario)


MALFORMED: list[tuple[str, dict[str, object], str]] = [
    ("/retrieve", {"tenant": "demo"}, "query"),
    ("/retrieve", {"query": "", "tenant": "demo"}, "query"),
    ("/retrieve", {"query": " \n", "tenant": "demo"}, "query"),
    ("/retrieve", {"query": "x" * 8193, "tenant": "demo"}, "query"),
    ("/retrieve", {"query": "x", "tenant": ""}, "tenant"),
    ("/retrieve", {"query": "x", "tenant": "demo", "top_k": 51}, "top_k"),
    ("/retrieve", {"query": "x", "tenant": "demo", "top_k": 2.5}, "top_k"),
    ("/retrieve", {"query": "x", "tenant": "demo", "budget_ms": 0}, "budget_ms"),
    ("/retrieve", {"query": "x", "tenant": "demo", "cache_ttl_s": -1}, "cache_ttl_s"),
    ("/retrieve", {"query": "x", "tenant": "demo", "effort": 0}, "effort"),
    ("/retrieve", {"query": "x", "tenant": "demo", "effort": 1.01}, "effort"),
    ("/retrieve", {"query": "x", "tenant": "demo", "hybrid": "yes"}, "hybrid"),
    ("/embed", {"input": []}, "input"),
    ("/embed", {"input": ["x", 5]}, "input[1]"),
    ("/embed", {"input": "x"}, "input"),
]


def test_a_malformed_request_is_refused_by_the_name_of_its_field(model: Path) -> None:
    async def scenario(client: Client) -> None:
        for path, body, param in MALFORMED:
            answer = await client.http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    serve(settings_for("postgresql://nobody@127.0.0.1:1/none"), model, scenario)


async def _connections(root: asyncpg.Connection) -> set[int]:
    """Those of the pool, by the processes that serve them."""
    of_the_pool = "SELECT pid FROM pg_stat_activity WHERE application_name = 'weir-retrieval'"
    return {row["pid"] for row in await root.fetch(f"{of_the_pool} AND datname = current_database()")}


async def _answers(client: Client, query: str, source: str) -> bool:
    return (await client.retrieve(query))["source"] == source


async def _is_stored(client: Client, query: str, **fields: object) -> bool:
    """It is asked, and its answer is in the cache: a write that the machine held up is given up, and made again."""
    await client.retrieve(query, **fields)
    return await client.metric("weir_cache_total", result="stored") >= 1
