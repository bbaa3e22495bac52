"""What the workers announce, and what the router says of itself."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from loadtests.storm.capacity import Capacity, NoCapacity, announced, answers_per_s
from loadtests.storm.watching import Frame, Watching, counters
from services.contracts.generate import WorkerStatus
from services.runtime.http import Exchange
from tests.runtime.rig import serving, until
from tests.virtual import run

STATUS = WorkerStatus("w", "simulated", ["m"], 8, 8, 0, 0, False, 190.0, 0.2, full_step_ms=24.0)


def replying(status: int, body: bytes) -> Any:
    async def reply(exchange: Exchange) -> None:
        await exchange.reply(status, body)

    return reply


def test_a_load_of_one_is_what_full_steps_can_do_whatever_the_worker_does_now():
    assert answers_per_s(STATUS, 100, 24) == pytest.approx(1000 / (24 * 24 / 8 + 100 * 0.2))
    old = msgspec.structs.replace(STATUS, full_step_ms=0.0)
    assert answers_per_s(old, 100, 24) == pytest.approx(1000 / (24 * 190 / 8 + 100 * 0.2))
    assert answers_per_s(msgspec.structs.replace(old, step_ms=0.0), 100, 24) == 0.0


def test_capacity_is_that_of_the_workers_that_answer():
    async def main() -> None:
        routes = {("GET", "/status"): replying(200, msgspec.json.encode(STATUS))}
        async with serving(routes, drain_timeout_s=0.2) as process:
            url = f"http://127.0.0.1:{process.bound_port}"
            one = answers_per_s(STATUS, 16, 24)
            assert await announced([url, "http://127.0.0.1:1", url], (16, 24)) == Capacity(2 * one, 16)
            with pytest.raises(NoCapacity):
                await announced(["http://127.0.0.1:1"], (16, 24))

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
weir_requests_total{tenant="other",outcome="served"} %d
weir_wasted_seconds_total{reason="client_gone"} %d
"""

    async def main() -> None:
        numbers = iter(((3, 50, 1), (10, 80, 4)))

        async def handler(exchange: Exchange) -> None:
            await exchange.reply(200, (page % next(numbers)).encode())

        async with serving({("GET", "/metrics"): handler}, drain_timeout_s=0.2) as process:
            url = f"http://127.0.0.1:{process.bound_port}"
            before, after = await counters(url, ["anna"]), await counters(url, ["anna"])
            assert before is not None
            assert after is not None
            assert after.requests - before.requests == {"served": 7}
            assert after.wasted_s - before.wasted_s == 3.0
            assert await counters("http://127.0.0.1:1", ["anna"]) is None

    run(main)
