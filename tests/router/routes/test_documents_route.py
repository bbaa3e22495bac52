"""`/documents` at the router, over a network: whose they are, what they cost, and how a refusal is passed on."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused, WeirError
from services.runtime.http import Exchange, Handler
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, error_of, standing
from tests.router.tenancy.test_identity import as_tenant, entry, listed
from tests.runtime.rig import until
from tests.virtual import run


@dataclass
class FakeLibrary(FakeRetrieval):
    """Retrieval that says what it was asked, or refuses."""

    calls: list[tuple[str, str, str, str, Any]] = field(default_factory=list)
    refusal: WeirError | None = None
    gone: int = 0
    quotas: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)

    def routes(self) -> dict[tuple[str, str], Handler]:
        paths = {("GET", "/documents"), ("PUT", "/documents/{rest:path}"), ("DELETE", "/documents/{rest:path}")}
        return {**super().routes(), **dict.fromkeys(paths, self.documents)}

    async def documents(self, exchange: Exchange) -> None:
        tenant = (exchange.header(b"x-tenant") or b"").decode()
        body = json.loads(exchange.body) if exchange.body else None
        self.calls.append((exchange.method, exchange.tail, exchange.query.decode(), tenant, body))
        self.quotas.append((exchange.header(b"x-documents-count"), exchange.header(b"x-documents-bytes")))
        exchange.on_gone(self._left)
        if self.stall:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal
        await exchange.reply(201 if exchange.method == "PUT" else 200, b'{"said": "so"}')

    def _left(self) -> None:
        self.gone += 1


async def put(stand: Stand, doc_id: str, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stand.client.put(f"/documents/{doc_id}", content=content, headers=headers)


def test_what_is_asked_reaches_retrieval_as_the_keys_owner_and_its_answer_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        library = FakeLibrary()
        file = listed(tmp_path, entry("a"), entry("b"))
        async with standing(FakeWorker(answer), retrieval=library, tenants_file=file) as stand:
            mine = as_tenant("a", **{"x-tenant": "b"})
            added = await put(stand, "guides/100%25%20caf%C3%A9.md", {"text": "hi", "title": "Hi"}, **mine)
            assert (added.status_code, added.json()) == (201, {"said": "so"})
            assert "total;dur=" in added.headers["server-timing"]
            assert (await stand.client.get("/documents?after=x%26y&limit=5", headers=mine)).status_code == 200
            assert (await stand.client.delete("/documents/a", headers=mine)).status_code == 200
            assert library.calls == [
                ("PUT", "guides/100% café.md", "", "a", {"text": "hi", "title": "Hi"}),
                ("GET", "", "after=x%26y&limit=5", "a", None),
                ("DELETE", "a", "", "a", None),
            ]
            assert await stand.counted() == {"served": 3}

    run(main)


def test_what_a_tenant_may_keep_is_the_files_word_and_never_the_clients(tmp_path: Path) -> None:
    async def main() -> None:
        library = FakeLibrary()
        file = listed(tmp_path, entry("a", documents={"count": 3, "bytes": 500}), entry("b", documents={"bytes": 0}))
        async with standing(FakeWorker(answer), retrieval=library, tenants_file=file) as stand:
            for tenant in ("a", "b"):
                await put(stand, "x", {"text": "hi"}, **as_tenant(tenant, **{"x-documents-count": "999"}))
            assert library.quotas == [(b"3", b"500"), (None, b"0")]

    run(main)


def test_in_the_lab_the_tenant_is_the_headers_word() -> None:
    async def main() -> None:
        library = FakeLibrary()
        async with standing(FakeWorker(answer), retrieval=library) as stand:
            await put(stand, "a", {"text": "hi"})
            await put(stand, "a", {"text": "hi"}, **{"x-tenant": "acme"})
            assert [call[3] for call in library.calls] == ["demo", "acme"]

    run(main)


def test_a_stranger_reaches_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        library = FakeLibrary()
        async with standing(FakeWorker(answer), retrieval=library, tenants_file=listed(tmp_path, entry("a"))) as stand:
            for headers in ({}, as_tenant("b"), {"x-tenant": "a"}):
                for method in ("PUT", "DELETE"):
                    told = await stand.client.request(method, "/documents/x", content=b"{", headers=headers)
                    assert (told.status_code, error_of(told)["code"]) == (401, "invalid_api_key")
                assert (await stand.client.get("/documents", headers=headers)).status_code == 401
            assert library.calls == []

    run(main)


def test_a_rate_holds_for_documents_and_what_is_malformed_or_refused_costs_none_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        library = FakeLibrary()
        file = listed(tmp_path, entry("a", rate={"requests_per_s": 0.01}), entry("b", rate={"tokens_per_s": 100}))
        async with standing(FakeWorker(answer), retrieval=library, tenants_file=file) as stand:
            for body, param in ((b"{", None), ({"text": 5}, "text"), ({"text": "x", "extra": 1}, "extra")):
                told = await put(stand, "x", body, **as_tenant("a"))
                assert (told.status_code, error_of(told)["param"]) == (400, param)
            assert library.calls == []
            library.refusal = Refused(Outcome.YIELD, "busy", reason="documents_busy", scope="tenant", retry_hint_ms=700)
            busy = await put(stand, "x", {"text": "x"}, **as_tenant("a"))
            details = error_of(busy)["details"]
            assert (busy.status_code, details["reason"], details["scope"]) == (429, "documents_busy", "tenant")
            assert busy.headers["retry-after-ms"] == "700"
            library.refusal = None
            assert (await put(stand, "x", {"text": "x"}, **as_tenant("a"))).status_code == 201
            told = await stand.client.delete("/documents/x", headers=as_tenant("a"))
            assert (told.status_code, error_of(told)["code"]) == (429, "rate_limit_exceeded")
            assert (await put(stand, "x", {"text": "x" * 4000}, **as_tenant("b"))).status_code == 201
            told = await put(stand, "x", {"text": "x"}, **as_tenant("b"))
            assert (told.status_code, error_of(told)["code"]) == (429, "rate_limit_exceeded")
            assert len(library.calls) == 3

    run(main)


@pytest.mark.parametrize(
    ("refusal", "status", "code", "param"),
    [
        (BadInput("text: no", "text", code="invalid_text"), 400, "invalid_text", "text"),
        (BadInput("gone", "id", status=404, code="document_not_found"), 404, "document_not_found", "id"),
        (BadInput("too many", "content", status=413, code="request_too_large"), 413, "request_too_large", "content"),
        (BadInput("what", "content", status=422, code="unreadable_document"), 422, "unreadable_document", "content"),
        (Refused(Outcome.NO_CAPACITY, "down", reason="store_down"), 503, "no_capacity", None),
        (Refused(Outcome.DEADLINE_EXCEEDED, "late", reason="deadline"), 504, "deadline_exceeded", None),
        (WeirError(Outcome.INTERNAL, "oh"), 502, "upstream_failed", None),
    ],
)
def test_retrievals_refusals_are_passed_on_by_the_refusal_table(
    refusal: WeirError, status: int, code: str, param: str | None
) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), retrieval=FakeLibrary(refusal=refusal)) as stand:
            told = await put(stand, "x", {"text": "x"})
            error = error_of(told)
            assert (told.status_code, error["code"], error["param"]) == (status, code, param)
            reason = refusal.details.reason if status in (503, 504) else None
            assert error["details"].get("reason") == reason

    run(main)
    refusal.__traceback__ = None  # it outlives the test, and its frames would keep the router


def test_without_retrieval_it_is_502_and_over_the_bounds_413_and_504() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            told = await stand.client.get("/documents")
            assert (told.status_code, error_of(told)["code"]) == (502, "upstream_failed")
            assert "127.0.0.1" not in told.text
        library = FakeLibrary(stall=True)
        async with standing(FakeWorker(answer), retrieval=library, max_body_bytes=2048) as stand:
            assert (await put(stand, "x", {"text": "x" * 2048})).status_code == 413
            assert library.calls == []
            told = await put(stand, "x", {"text": "x"}, **{"x-weir-deadline-ms": "150"})
            assert (told.status_code, error_of(told)["code"]) == (504, "deadline_exceeded")
            await until(lambda: library.gone == 1)

    run(main)


def test_a_client_that_leaves_takes_its_request_out_of_retrieval() -> None:
    async def main() -> None:
        library = FakeLibrary(stall=True)
        async with standing(FakeWorker(answer), retrieval=library) as stand:
            leaving = asyncio.create_task(put(stand, "x", {"text": "x"}))
            await until(lambda: len(library.calls) == 1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await until(lambda: library.gone == 1)
            async with asyncio.timeout(20):
                while await stand.counted() != {"client_gone": 1}:
                    await asyncio.sleep(0.01)

    run(main)


def test_documents_stand_in_the_apis_description() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            described = (await stand.client.get("/openapi.json")).json()
            one, all_of_them = described["paths"]["/documents/{id}"], described["paths"]["/documents"]
            assert one["put"]["requestBody"]["content"]["application/json"]["schema"]["allOf"][0]["$ref"].endswith(
                "/PutDocument"
            )
            assert set(one["put"]["responses"]) >= {"200", "201", "429", "502", "503", "504"}
            assert [parameter["name"] for parameter in one["put"]["parameters"]] == ["id"]
            assert [parameter["name"] for parameter in one["delete"]["parameters"]] == ["id"]
            assert [parameter["name"] for parameter in all_of_them["get"]["parameters"]] == ["after", "limit"]

    run(main)
