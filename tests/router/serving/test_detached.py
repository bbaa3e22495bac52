"""Without cancellation the work of those who left goes on: told in time, counted once, and nothing of it stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from services.contracts.generate import Done, GenerateRequest, Token
from services.core.outcome import Outcome
from services.router.serving.detached import DetachedRequests, DetachingTimer
from services.runtime.http import Exchange
from tests.router.leaver import Client, Way, answered_whole, asking
from tests.router.leaving import Scene, leap, scene, seen
from tests.router.rig import TIMINGS, USAGE, WORDS, FakeWorker, Stand, answer, error_of, events_of, standing
from tests.router.stepping import Stage
from tests.runtime.rig import until
from tests.virtual import run

MANY, AT_ONCE = 200, 16
WAYS = (Way.FIN, Way.RST, Way.HALF)


class Gate:
    """A worker's script that answers once it is let."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.heard: list[GenerateRequest] = []
        self.ended = 0

    async def __call__(self, exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        self.heard.append(request)
        if request.stream:
            await exchange.start(200, b"application/x-ndjson")
            await exchange.write(msgspec.json.encode(Token(WORDS[0])) + b"\n")
        await self.opened.wait()
        if request.stream:
            for word in WORDS[1:]:
                await exchange.write(msgspec.json.encode(Token(word)) + b"\n")
            await exchange.end(msgspec.json.encode(Done("stop", USAGE, TIMINGS, 1, None)) + b"\n")
        else:
            await answer(exchange, request, worker)
        self.ended += 1


@asynccontextmanager
async def gated(
    slots: int = 1, prefill_ms_per_token: float = 0.0, **settings: Any
) -> AsyncIterator[tuple[Stand, Gate]]:
    gate = Gate()
    chosen = {"policy": "no-cancellation", **settings}
    worker = FakeWorker(gate, slots=slots, prefill_ms_per_token=prefill_ms_per_token)
    async with standing(worker, **chosen) as stand:
        yield stand, gate


async def switch(stand: Stand, **on: bool) -> None:
    assert (await stand.metrics.post("/admin/policy", content=msgspec.json.encode(on))).status_code == 200


async def wasted_s(stand: Stand) -> dict[str, float]:
    found = await stand.samples("weir_wasted_seconds_total")
    return {labels.split('"')[1]: value for labels, value in found if value}


# ---- the deadline


def test_at_its_deadline_a_client_is_told_and_its_work_goes_on_and_is_counted_as_wasted() -> None:
    async def main() -> None:
        async with gated() as (stand, gate):
            told = await stand.chat(headers={"X-Weir-Deadline-Ms": "150"})
            assert (told.status_code, error_of(told)["code"]) == (504, "deadline_exceeded")
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 1}
            assert stand.workers[0].running == 1
            assert (await stand.samples("weir_inflight")) == [("", 1.0)]
            assert await wasted_s(stand) == {}
            gate.opened.set()
            await stand.all_returned()
            assert gate.ended == 1
            assert (stand.workers[0].left, stand.workers[0].cancelled) == (0, [])
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 1}
            assert (await wasted_s(stand)).keys() == {Outcome.DEADLINE_EXCEEDED}
            (learned,) = stand.dispatcher.scheduler.pools.values()
            assert learned.costs.count == 1, "a whole answer teaches, whoever hears it"

    run(main)


def test_its_worker_is_not_told_of_the_deadline() -> None:
    async def main() -> None:
        async with gated(max_deadline_ms=40_000) as (stand, gate):
            gate.opened.set()
            assert (await stand.chat(headers={"X-Weir-Deadline-Ms": "5000"})).status_code == 200
            await switch(stand, cancellation=True)
            assert (await stand.chat(headers={"X-Weir-Deadline-Ms": "5000"})).status_code == 200
            without, with_it = (request.deadline_ms for request in gate.heard)
            assert 60_000 < without <= 80_000
            assert with_it <= 5000

    run(main)


def test_the_connection_of_one_that_was_told_is_free_for_the_next_request() -> None:
    async def main() -> None:
        async with gated(slots=2) as (stand, gate):
            client = Client("late", Way.FIN)
            await client.connect(stand.router.bound_port)
            await client.send(asking("late", x_weir_deadline_ms="150"))
            assert b"504 Gateway Timeout" in await client.read_until(answered_whole)
            client.seen = b""
            await client.send(asking("next"))
            await until(lambda: stand.workers[0].running == 2, "the next one at the worker, beside the detached one")
            gate.opened.set()
            seen = await client.read_until(answered_whole)
            assert b"200 OK" in seen
            assert seen.count(b"HTTP/1.1") == 1, "nothing of the detached request's answer"
            client.close()

    run(main)


def test_one_whose_deadline_passes_in_line_keeps_its_place_and_is_worked_on_for_nobody() -> None:
    async def main() -> None:
        async with gated(policy="fifo") as (stand, gate):
            first = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            told = await stand.chat(headers={"X-Weir-Deadline-Ms": "150"})
            assert (told.status_code, error_of(told)["details"]["reason"]) == (504, "deadline")
            assert len(stand.dispatcher.waiting) == 1
            gate.opened.set()
            assert (await first).status_code == 200
            await stand.all_returned()
            assert gate.ended == 2
            assert await stand.counted() == {Outcome.SERVED: 1, Outcome.DEADLINE_EXCEEDED: 1}
            assert (await wasted_s(stand)).keys() == {Outcome.DEADLINE_EXCEEDED}

    run(main)


def test_one_that_expires_in_line_by_admission_before_its_deadline_is_not_detached() -> None:
    async def main() -> None:
        async with gated(prefill_ms_per_token=20.0) as (stand, gate):
            first = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            told = await stand.chat(headers={"X-Weir-Deadline-Ms": "1000", "X-Tenant": "b"})
            assert (told.status_code, error_of(told)["code"]) == (429, "deadline_expired")
            assert not stand.dispatcher.waiting
            gate.opened.set()
            await first

    run(main)


def test_a_stream_whose_deadline_passes_ends_with_an_error_and_is_read_to_its_end_for_nobody() -> None:
    async def main() -> None:
        async with gated() as (stand, gate):
            told = await stand.chat(stream=True, headers={"X-Weir-Deadline-Ms": "400"})
            assert told.status_code == 200
            last = events_of(told)[-1]
            assert '"deadline_exceeded"' in last
            assert "[DONE]" not in told.text
            assert stand.workers[0].running == 1
            gate.opened.set()
            await stand.all_returned()
            assert (gate.ended, stand.workers[0].left) == (1, 0)
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 1}

    run(main)


def test_a_first_token_that_is_late_is_told_and_its_work_goes_on() -> None:
    opened = asyncio.Event()

    async def silent(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await opened.wait()
        await answer(exchange, request, worker)

    async def main() -> None:
        async with standing(FakeWorker(silent, slots=1), policy="no-cancellation") as stand:
            told = await stand.chat(stream=True, headers={"X-Weir-TTFT-Ms": "150"})
            assert (told.status_code, error_of(told)["details"]["reason"]) == (504, "first_token")
            assert stand.workers[0].running == 1
            opened.set()
            await stand.all_returned()
            assert stand.workers[0].left == 0
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 1}

    run(main)


def test_a_first_token_that_nobody_waits_for_any_more_is_not_late() -> None:
    async def main() -> None:
        async with gated(policy="fifo") as (stand, gate):
            first = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            told = await stand.chat(stream=True, headers={"X-Weir-Deadline-Ms": "150", "X-Weir-TTFT-Ms": "100"})
            assert (told.status_code, len(stand.dispatcher.waiting)) == (504, 1)
            gate.opened.set()
            await first
            await stand.all_returned()
            (learned,) = stand.dispatcher.scheduler.pools.values()
            assert learned.costs.count == 2, "both were read to their ends"

    run(main)


def test_a_detached_request_whose_worker_never_answers_is_held_no_longer_than_twice_the_longest_deadline() -> None:
    async def main() -> None:
        async with gated(max_deadline_ms=300, default_slo_ms=300) as (stand, gate):
            told = await stand.chat(headers={"X-Weir-Deadline-Ms": "100"})
            assert told.status_code == 504
            await stand.all_returned()
            assert (gate.ended, stand.workers[0].left) == (0, 1)
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 1}

    run(main)


# ---- leaving


def test_two_hundred_who_leave_keep_their_places_until_their_work_is_done_and_then_nothing_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(
            Stage.DISPATCHED, monkeypatch, stream=False, workers=1, places=AT_ONCE, policy="fifo", max_queue_size=MANY
        ) as here:
            await leave_all(here, "first", 32)
            before = await here.at_rest()
            await leave_all(here, "client", MANY)
            after = await here.at_rest(before)
            assert (after.of_requests, after.objects[DetachingTimer]) == ({}, 0)
            assert after.more(before, at_least=MANY * 0.8) == {}
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: MANY + 32}
            lines = [line for line in await here.log_lines(MANY + 32) if line["path"] != "other"]
            assert Counter(line["status"] for line in lines) == {499: MANY + 32}
            assert all(line["client_ms"] <= line["ms"] for line in lines)

    run(main)


async def leave_all(here: Scene, name: str, count: int) -> None:
    """All of them leave while most wait; each is worked on, in turn, for nobody."""
    gate = Gate()
    (worker,) = here.workers
    worker.script = gate
    clients = [await here.client(f"{name}-{number}", WAYS[number % 3]) for number in range(count)]
    for client in clients:
        await client.send(asking(client.id))
    await until(lambda: (worker.running, len(here.dispatcher.waiting)) == (AT_ONCE, count - AT_ONCE), "all in place")
    gone = (await here.stand.counted()).get(Outcome.CLIENT_GONE, 0)
    for client in clients:
        client.leave()
    async with asyncio.timeout(20):
        while (await here.stand.counted()).get(Outcome.CLIENT_GONE, 0) != gone + count:
            await asyncio.sleep(0.005)
    assert (worker.running, len(here.dispatcher.waiting)) == (AT_ONCE, count - AT_ONCE)
    gate.opened.set()
    await here.all_gone(clients)
    await until(lambda: gate.ended == count, "all of the work done")
    assert (worker.left, worker.cancelled) == (0, [])
    gate.heard.clear()


# ---- and on again


def test_cancellation_that_comes_back_ends_all_work_for_nobody_at_once() -> None:
    async def main() -> None:
        async with gated(slots=2, policy="fifo") as (stand, gate):
            late = [stand.chat(headers={"X-Weir-Deadline-Ms": "150"}) for _ in range(6)]
            assert {told.status_code for told in await asyncio.gather(*late)} == {504}
            assert (stand.workers[0].running, len(stand.dispatcher.waiting)) == (2, 4)
            await switch(stand, admission=True, fairness=True, cancellation=True)
            await stand.all_returned()
            assert (gate.ended, stand.workers[0].left, len(stand.workers[0].cancelled)) == (0, 2, 2)
            assert not stand.dispatcher.waiting
            assert await stand.counted() == {Outcome.DEADLINE_EXCEEDED: 6}

    run(main)


def test_one_that_came_without_cancellation_and_leaves_after_it_is_back_is_cancelled() -> None:
    async def main() -> None:
        async with gated() as (stand, gate):
            client = Client("came before", Way.FIN)
            await client.connect(stand.router.bound_port)
            await client.send(asking("came-before"))
            await until(lambda: stand.workers[0].running == 1)
            late = asyncio.create_task(stand.chat(headers={"X-Weir-Deadline-Ms": "400", "X-Tenant": "b"}))
            await switch(stand, cancellation=True)
            client.leave()
            await until(lambda: stand.workers[0].left == 1)
            assert error_of(await late)["code"] in ("deadline_exceeded", "deadline_expired", "deadline_infeasible")
            await stand.all_returned()
            assert gate.ended == 0

    run(main)


def test_a_drain_turns_detached_requests_in_line_away_and_ends_those_at_workers_with_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(
            Stage.DISPATCHED, monkeypatch, stream=False, workers=1, places=2, policy="fifo", drain_timeout_s=0.1
        ) as here:
            clients = [await here.client(f"client-{number}") for number in range(4)]
            for client in clients:
                await client.send(asking(client.id))
            await until(lambda: (here.there(), len(here.dispatcher.waiting)) == (2, 2), "all in place")
            for client in clients:
                client.leave()
            async with asyncio.timeout(20):
                while await here.stand.counted() != {Outcome.CLIENT_GONE: 4}:
                    await asyncio.sleep(0.005)
            here.stand.router.drain.begin()
            await until(lambda: len(here.dispatcher.ended_at) == 2, "those in line have ended")
            assert here.dispatcher.cap.inflight == 2
            await here.stand.router.listener.close(0.1)
            await until(lambda: not here.still_held(), f"nothing held: {here.still_held()}")
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: 4}

    run(main)


def test_a_worker_that_falls_silent_in_the_middle_of_a_stream_frees_its_place_without_cancellation_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(Stage.MID_STREAM, monkeypatch, stream=True, policy="fifo", stream_silence_s=5.0) as here:
            (client,) = await here.arrive(["silent"])
            client.leave()
            await seen()
            leap(5.1)
            await until(lambda: not here.still_held(), "its place is free")
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: 1}
            here.clients.clear()

    run(main)


def test_detached_requests_end_in_the_order_in_which_they_were_detached() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def main() -> None:
        nothing: Any = None
        detached = DetachedRequests(nothing, nothing, hold_s=1.0)
        works = [asyncio.create_task(work(number)) for number in range(MANY)]
        for one in works:
            detached._works.add(one)
        await asyncio.sleep(0)
        assert detached.switch(True) == MANY
        await asyncio.wait(works)

    run(main)
    assert ended == list(range(MANY))
