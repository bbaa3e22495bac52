"""One attempt, over a network: what is sent, and how whatever comes back is read."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from loadtests.storm.capacity import Capacity, NoCapacity, announced, answers_per_s
from loadtests.storm.door import QUESTIONS, Answer, Attempt, DoorLost, HttpDoor
from loadtests.storm.plan import Question
from loadtests.storm.watching import Frame, Watching, counted, counters
from services.contracts.generate import WorkerStatus
from services.runtime.http import Exchange
from tests.runtime.rig import serving, until
from tests.virtual import run

ATTEMPT = Attempt("anna", 7, 2.0, tried_before=1)
STATUS = WorkerStatus("w", "simulated", ["m"], 8, 8, 0, 0, False, 190.0, 0.2, full_step_ms=24.0)


def asked_of(handler: Any, question: Question = Question()) -> Answer:  # noqa: B008  # a frozen value
    """What one attempt comes to at a router whose every route is this handler."""

    async def main() -> Answer:
        routes = {("POST", "/v1/chat/completions"): handler, ("POST", "/ask"): handler}
        async with serving(routes, drain_timeout_s=0.2) as process:
            door = HttpDoor(f"http://127.0.0.1:{process.bound_port}", question, 4)
            try:
                return await door.ask(ATTEMPT)
            finally:
                door.close()

    return run(main)


def replying(status: int, body: bytes, **headers: str) -> Any:
    async def reply(exchange: Exchange) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await exchange.reply(status, body, headers=named)

    return reply


def test_an_attempt_says_who_by_when_and_how_often_before():
    seen: dict[str, Any] = {}

    async def handler(exchange: Exchange) -> None:
        seen.update({name: exchange.header(name.encode()) for name in ("x-tenant", "x-weir-deadline-ms")})
        seen["retry"] = exchange.header(b"x-stainless-retry-count")
        seen["body"] = msgspec.json.decode(exchange.body)
        await exchange.reply(200, b"{}")

    assert asked_of(handler).served
    assert (seen["x-tenant"], seen["x-weir-deadline-ms"], seen["retry"]) == (b"anna", b"2000", b"1")
    assert (seen["body"]["max_tokens"], seen["body"]["ignore_eos"]) == (24, True)
    assert seen["body"]["messages"][0]["content"].startswith("7: water")  # no two are alike: no cache answers them
    assert asked_of(handler, Question("ask")).served
    assert seen["body"]["query"] in QUESTIONS


@pytest.mark.parametrize(
    ("handler", "answer"),
    [
        (replying(200, b'{"retrieval_source":"db"}'), Answer(200, source="db")),
        (replying(200, b"<html>"), Answer(200, "malformed")),
        (replying(200, b'{"error":{"code":"upstream_failed"}}'), Answer(200, "upstream_failed")),
        (replying(200, b'{"error":{}}'), Answer(200, "unnamed")),
        (
            replying(429, b'{"error":{"code":"yield"}}', retry_after_ms="1500", x_should_retry="true"),
            Answer(429, "yield", 1.5, True),
        ),
        (replying(429, b"{}", retry_after_ms="soon"), Answer(429, "status_429")),
        (replying(503, b"{}", retry_after_ms="1e99"), Answer(503, "status_503", 60.0)),
        (replying(502, b"\xff"), Answer(502, "malformed")),
    ],
)
def test_whatever_comes_back_is_read_with_suspicion(handler: Any, answer: Answer):
    assert asked_of(handler) == answer


def test_an_answer_that_is_cut_or_too_long_is_lost():
    async def cut(exchange: Exchange) -> None:
        await exchange.start(200, b"application/json")
        await exchange.write(b'{"half')
        raise RuntimeError("died")

    with pytest.raises(DoorLost, match="connection_lost"):
        asked_of(cut)
    with pytest.raises(DoorLost, match="connection_lost"):
        asked_of(replying(200, b" " * 300_000))


def test_a_load_of_one_is_what_full_steps_can_do_whatever_the_worker_does_now():
    question = Question(prompt_tokens=100, answer_tokens=24)
    assert answers_per_s(STATUS, question) == pytest.approx(1000 / (24 * 24 / 8 + 100 * 0.2))
    old = msgspec.structs.replace(STATUS, full_step_ms=0.0)
    assert answers_per_s(old, question) == pytest.approx(1000 / (24 * 190 / 8 + 100 * 0.2))
    assert answers_per_s(msgspec.structs.replace(old, step_ms=0.0), question) == 0.0


def test_capacity_is_that_of_the_workers_that_answer():
    async def main() -> None:
        routes = {("GET", "/status"): replying(200, msgspec.json.encode(STATUS))}
        async with serving(routes, drain_timeout_s=0.2) as process:
            url = f"http://127.0.0.1:{process.bound_port}"
            one = answers_per_s(STATUS, Question())
            assert await announced([url, "http://127.0.0.1:1", url], Question()) == Capacity(2 * one, 16)
            with pytest.raises(NoCapacity):
                await announced(["http://127.0.0.1:1"], Question())

    run(main)


def test_frames_are_followed_however_they_are_cut_and_a_router_without_any_is_asked_again():
    heard: list[Frame] = []
    stream = b"".join(
        b'event: %b\ndata: {"level":%d,"waiting":{"requests":%d},"other":[1]}\n\n' % (name, level, 10 * level)
        for name, level in ((b"hello", 9), (b"frame", 1), (b"frame", 2))
    )
    asked = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await exchange.reply(503, b"{}")
            return
        await exchange.start(200, b"text/event-stream")
        for at in range(len(stream)):
            await exchange.write(stream[at : at + 1])
            await asyncio.sleep(0)
        await exchange.end()

    async def main() -> None:
        async with serving({("GET", "/console/events"): handler}, drain_timeout_s=0.2) as process:
            watching = asyncio.ensure_future(Watching(f"http://127.0.0.1:{process.bound_port}", heard.append).watch())
            await until(lambda: heard and heard[-1].level == 2)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    run(main)
    assert {frame.level for frame in heard} <= {1, 2}
    assert heard[-1].waiting.requests == 20
    assert not heard[-1].at_rest


def test_what_the_router_counted_is_the_difference_for_these_tenants():
    page = """# TYPE weir_requests_total counter
weir_requests_total{tenant="anna",outcome="served"} %d
weir_requests_total{tenant="other",outcome="served"} 100
weir_wasted_seconds_total{reason="client_gone"} %d
"""

    async def main() -> None:
        numbers = iter(((3, 1), (10, 4)))

        async def handler(exchange: Exchange) -> None:
            await exchange.reply(200, (page % next(numbers)).encode())

        async with serving({("GET", "/metrics"): handler}, drain_timeout_s=0.2) as process:
            url = f"http://127.0.0.1:{process.bound_port}"
            before, after = await counters(url), await counters(url)
            assert before is not None
            assert after is not None
            assert counted(before, after, {"anna"}) == {"served": 7.0}
            assert after.wasted_s - before.wasted_s == 3.0
            assert await counters("http://127.0.0.1:1") is None
            assert counted(None, after, {"anna"}) == {}

    run(main)
