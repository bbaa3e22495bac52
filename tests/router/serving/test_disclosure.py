"""What was cut is said: before, as far as it is known, and after, exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import httpx2
import msgspec
import pytest

from services.contracts.generate import Done, GenerateRequest, Token
from services.core.ladder import LADDER
from services.runtime.http import Exchange
from tests.router.rig import TIMINGS, USAGE, FakeRetrieval, FakeWorker, Stand, events_of, passage, standing
from tests.router.tenancy.test_identity import as_tenant, entry, listed
from tests.virtual import run

DEEPEST = 4


def ending(finish_reason: Literal["stop", "length"]) -> Any:
    """A worker whose answers end like this."""

    async def answer(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        done = msgspec.json.encode(Done(finish_reason, USAGE, TIMINGS, 1, None if request.stream else "A weir."))
        token = msgspec.json.encode(Token("A weir.")) + b"\n" if request.stream else b""
        await exchange.reply(200, token + done + b"\n", content_type=b"application/x-ndjson")

    return answer


async def hold(stand: Stand, level: int) -> None:
    """Hold every class at a level, as an operator does."""
    body = json.dumps({"class": None, "level": level}).encode()
    held = await stand.metrics.post("/admin/level", content=body, headers={"content-type": "application/json"})
    assert held.status_code == 200


def said_after(response: httpx2.Response) -> list[str]:
    """What the last event before [DONE] says was cut."""
    degraded: list[str] = json.loads(events_of(response)[-2])["weir"]["degraded"]
    return degraded


@pytest.mark.parametrize(("finish_reason", "after"), [("length", ["max_tokens"]), ("stop", [])])
def test_a_lowered_limit_is_said_before_and_after_only_if_the_answer_met_it(
    finish_reason: Literal["stop", "length"], after: list[str]
) -> None:
    async def main() -> None:
        async with standing(FakeWorker(ending(finish_reason))) as stand:
            await hold(stand, DEEPEST)
            streamed = await stand.chat(stream=True, max_tokens=100)
            assert stand.workers[0].asked[0].max_tokens == 30
            assert streamed.headers["x-weir-level"] == str(DEEPEST)
            assert streamed.headers["x-weir-degraded"] == "max_tokens"
            assert said_after(streamed) == after
            whole = await stand.chat(max_tokens=100)
            assert whole.headers.get("x-weir-degraded", "") == ",".join(after)

    run(main)


def test_what_is_not_cut_says_nothing() -> None:
    async def main() -> None:
        async with standing(FakeWorker(ending("length"))) as stand:
            streamed = await stand.chat(stream=True, max_tokens=100)
            assert stand.workers[0].asked[0].max_tokens == 100
            assert "x-weir-degraded" not in streamed.headers
            assert (streamed.headers["x-weir-level"], said_after(streamed)) == ("0", [])

    run(main)


def test_the_deepest_level_asks_for_no_passages_and_says_so() -> None:
    async def main() -> None:
        retrieval = FakeRetrieval([passage(1)])
        async with standing(FakeWorker(ending("stop")), retrieval=retrieval) as stand:
            await hold(stand, DEEPEST)
            response = await stand.post("/ask", {"query": "What holds?", "max_tokens": 100})
            body = response.json()
            assert (body["source"], body["retrieval_source"], body["level"]) == ("degraded", "skipped", DEEPEST)
            assert body["degraded"] == ["retrieval"] == response.headers["x-weir-degraded"].split(",")
            assert retrieval.asked == []

    run(main)


def test_a_level_between_asks_for_fewer_passages_and_says_so() -> None:
    async def main() -> None:
        retrieval = FakeRetrieval([passage(1), passage(2)])
        async with standing(FakeWorker(ending("stop")), retrieval=retrieval) as stand:
            await hold(stand, 1)
            body = (await stand.post("/ask", {"query": "What holds?", "top_k": 5})).json()
            assert retrieval.asked[0].top_k == 3
            assert retrieval.asked[0].effort == LADDER[1].ef_search_share < 1.0
            assert (body["source"], body["retrieval_source"], body["degraded"]) == ("degraded", "db", ["context"])

    run(main)


def test_a_tenant_that_allows_no_cut_is_served_whole_at_any_level(tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("whole"), entry("cut", degrade=True))
        async with standing(FakeWorker(ending("length")), tenants_file=file) as stand:
            await hold(stand, DEEPEST)
            for tenant, limit, said in (("whole", 100, ""), ("cut", 30, "max_tokens")):
                response = await stand.chat(headers=as_tenant(tenant), max_tokens=100)
                assert stand.workers[0].asked[-1].max_tokens == limit
                assert response.headers.get("x-weir-degraded", "") == said

    run(main)
