"""Leaving at a bad moment: while a place changes hands, while somebody else decides, without reading, half only."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import msgspec
import pytest

from services.contracts.generate import GenerateRequest, Token
from services.core.outcome import Outcome
from services.router.serving.response import KEEP_ALIVE_S
from services.runtime.connection import MAX_PIPELINED
from services.runtime.http import Exchange
from tests.router.leaver import Client, Way, answered_whole, asking
from tests.router.leaving import Scene, leap, leave_in_turns, scene, seen
from tests.router.rig import FakeWorker
from tests.router.stepping import Stage, last_of
from tests.runtime.rig import until
from tests.virtual import run

MANY = 48
both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


def named(count: int, name: str = "client") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def ends(here: Scene, clients: list[Client]) -> Counter[str]:
    """How they ended; one that ended twice is told by its two outcomes."""
    return Counter(here.dispatcher.outcomes[client.id] for client in clients)


async def all_gone(here: Scene, clients: list[Client]) -> None:
    await here.all_gone(clients)
    await here.at_rest()


@both
def test_a_client_that_closes_its_half_of_the_connection_has_left(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice. To RFC 9112 section 9.6 a half-closed connection does not imply that nobody wants the answer; but it is
    all that a client sends that has closed, and no HTTP client in wide use half-closes and then reads."""

    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=stream) as here:
            (client,) = await here.arrive(["half"], (Way.HALF,))
            client.leave()
            assert await client.read_to_end() == b""
            await all_gone(here, [client])
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: 1}

    run(main)


def test_the_place_in_line_of_one_who_left_is_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.QUEUED, monkeypatch, stream=False, tenant_queue_size=1) as here:
            holder = await here.hold_the_slot()
            (first,) = await here.arrive(["first"])
            refused = await here.client("refused")
            await refused.send(asking("refused"))
            assert b"tenant_requests" in await refused.read_until(answered_whole)
            first.leave()
            await here.all_gone([first])
            (second,) = await here.arrive(["second"])
            holder.leave()
            await until(lambda: here.there() == 2, "the second at a worker")
            second.leave()
            await here.at_rest()
            assert here.dispatcher.outcomes == dict.fromkeys(["first", "holder-0", "second"], Outcome.CLIENT_GONE)

    run(main)


def test_every_attempt_of_those_who_left_is_cancelled_by_name_though_others_take_their_places_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=False, workers=1, places=MANY) as here:
            holders = await here.arrive(named(MANY, "holder"))
            waiting = [await here.client(id) for id in named(MANY, "waiting")]
            for client in waiting:
                await client.send(asking(client.id))
            await until(lambda: len(here.dispatcher.waiting) == MANY, "the others in line")
            attempts = {request.id for worker in here.workers for request in worker.asked}
            for client in holders:
                client.leave()
            await until(lambda: here.there() == 2 * MANY, "the others at a worker")
            told = [worker.cancelled for worker in here.workers]
            await until(lambda: {id for ids in told for id in ids} == attempts, "every worker told of every attempt")
            for client in waiting:
                client.leave()
            await all_gone(here, holders + waiting)

    run(main)


def test_places_that_change_hands_all_at_once_find_their_connections_though_the_last_ends_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream is over with its last event; the end of its chunks may come later, and holds a connection till then."""

    async def main() -> None:
        async with scene(Stage.MID_STREAM, monkeypatch, stream=True, workers=1, places=MANY) as here:
            last_event, end = asyncio.Event(), asyncio.Event()

            async def script(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
                await exchange.start(200, b"application/x-ndjson")
                await exchange.write(msgspec.json.encode(Token("word ")) + b"\n")
                here.workers[0].there += 1
                await last_event.wait()
                await exchange.write(last_of(stream=True))
                await end.wait()
                await exchange.end()

            here.workers[0].script = script
            clients = [await here.client(id) for id in named(2 * MANY)]
            for client in clients:
                await client.send(asking(client.id, stream=True))
            await until(
                lambda: (here.there(), len(here.dispatcher.waiting)) == (MANY, MANY), "a full worker, a full line"
            )
            last_event.set()
            await until(lambda: here.there() == 2 * MANY, "those who waited at the worker")
            end.set()
            await asyncio.gather(*(client.read_until(answered_whole) for client in clients))
            await here.at_rest()
            assert ends(here, clients) == {Outcome.SERVED: 2 * MANY}

    run(main)


@both
def test_leaving_while_a_place_changes_hands_loses_no_place(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder goes, and those who wait go in the turns of the loop in which its place reaches one after another."""

    async def main() -> None:
        async with scene(Stage.QUEUED, monkeypatch, stream=stream) as here:
            holder = await here.hold_the_slot()
            clients = await here.arrive(named(MANY))
            holder.leave()
            await leave_in_turns(clients)
            await all_gone(here, clients)
            assert ends(here, clients) == {Outcome.CLIENT_GONE: MANY}
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: MANY + 1}

    run(main)


@both
@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.DISPATCHED, Stage.MID_STREAM], ids=lambda stage: stage.value)
def test_leaving_as_the_deadline_passes_ends_it_once(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(stage, monkeypatch, stream=stream) as here:
            holder = await here.hold_the_slot() if stage is Stage.QUEUED else None
            clients = await here.arrive(named(MANY), x_weir_deadline_ms="4500")
            await leave_in_turns(clients[::2])
            leap(4.6)
            await leave_in_turns(clients[1::2])
            if holder is not None:
                holder.leave()
            await all_gone(here, clients)
            passed = Outcome.DEADLINE_EXPIRED if stage is Stage.QUEUED else Outcome.DEADLINE_EXCEEDED
            assert set(ends(here, clients)) <= {Outcome.CLIENT_GONE, passed}

    run(main)


@both
def test_leaving_as_the_drain_begins_ends_it_once(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.QUEUED, monkeypatch, stream=stream) as here:
            holder = await here.hold_the_slot()
            clients = await here.arrive(named(MANY))
            await leave_in_turns(clients[::2])
            here.stand.router.drain.begin()
            await leave_in_turns(clients[1::2])
            holder.leave()
            await all_gone(here, clients)
            assert set(ends(here, clients)) <= {Outcome.CLIENT_GONE, Outcome.DRAINING}

    run(main)


@both
def test_whoever_leaves_while_it_waits_for_a_second_worker_waits_no_longer(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=stream, places=2, max_inflight=MANY) as here:
            here.workers[0].script = fail
            holders = await here.arrive(named(2, "holder"))  # at the other one, after their retry or at once
            clients = [await here.client(id) for id in named(4)]
            for client in clients:
                await client.send(asking(client.id, stream=stream))
            await until(lambda: len(here.dispatcher._retries) == 4, "all of them between two workers")
            assert here.dispatcher.cap.inflight == 6
            for client in clients:
                client.leave()
            await here.all_gone(clients)
            assert here.dispatcher.cap.inflight == 2
            for client in holders:
                client.leave()
            await all_gone(here, holders)
            assert here.there() == 2

    run(main)


async def fail(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
    await exchange.reply(500, b"")


def test_a_stream_is_left_while_its_line_is_only_kept_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=True) as here:
            clients = await here.arrive(named(3), tuple(Way))
            leap(KEEP_ALIVE_S + 0.1)
            for client in clients:
                await client.read_until(lambda seen: b": keep-alive" in seen)
                client.leave()
            await all_gone(here, clients)
            assert ends(here, clients) == {Outcome.CLIENT_GONE: 3}

    run(main)


@pytest.mark.parametrize("way", list(Way), ids=lambda way: way.value)
def test_a_client_that_does_not_read_is_missed_as_soon_as_one_that_does(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(Stage.MID_STREAM, monkeypatch, stream=True, write_stall_s=60) as here:
            client = await flooded(here, way)
            client.leave()
            await until(lambda: not here.still_held(), "its place is free")
            await all_gone(here, [client])
            assert ends(here, [client]) == {Outcome.CLIENT_GONE: 1}
            await until(lambda: sum(worker.left for worker in here.workers) == 1, "the worker let go")

    run(main)


def test_a_client_that_does_not_read_holds_no_place_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.MID_STREAM, monkeypatch, stream=True) as here:
            client = await flooded(here, Way.FIN, x_weir_deadline_ms="4500")
            leap(4.6)
            await until(lambda: not here.still_held(), "its place is free")
            assert ends(here, [client]) == {Outcome.DEADLINE_EXCEEDED: 1}
            client.leave()
            await here.at_rest()

    run(main)


async def flooded(here: Scene, way: Way, **headers: str) -> Client:
    """A client that does not read, when its stream stands still up to the worker."""
    full = asyncio.Event()

    async def flood(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await exchange.start(200, b"application/x-ndjson")
        while True:
            await exchange.write(msgspec.json.encode(Token("x" * 65_536)) + b"\n")
            if exchange._wire.write_paused:
                full.set()
            await asyncio.sleep(0)

    for worker in here.workers:
        worker.script = flood
    client = await here.client("deaf", way)
    await client.send(asking("deaf", stream=True, **headers))
    await full.wait()
    return client


def test_only_the_request_that_was_begun_is_counted_of_several_on_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=False) as here:
            client = await here.client("first")
            await client.send(asking("first") + asking("second") + asking("third"))
            await until(lambda: here.there() == 1, "the first at its worker")
            client.leave()
            await all_gone(here, [client])
            assert here.dispatcher.outcomes == {"first": Outcome.CLIENT_GONE}
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: 1}

    run(main)


def test_a_client_that_leaves_a_long_pipeline_behind_holds_its_place_no_longer_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Past what may wait behind an answer nothing is read any more, and only who reads sees a client leave."""

    async def main() -> None:
        async with scene(Stage.DISPATCHED, monkeypatch, stream=False) as here:
            client = await here.client("first", Way.RST)
            behind = b"".join(asking(f"behind-{number}") for number in range(2 * MAX_PIPELINED))
            await client.send(asking("first", x_weir_deadline_ms="4500") + behind)
            await until(lambda: here.there() == 1, "the first at its worker")
            client.leave()
            await seen()
            leap(4.6)
            await until(lambda: not here.still_held(), "its place is free")
            assert here.dispatcher.outcomes["first"] == Outcome.DEADLINE_EXCEEDED
            await here.at_rest()

    run(main)


def test_whoever_asked_for_vectors_may_leave_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(Stage.RETRIEVAL, monkeypatch, stream=False) as here:
            clients = [await here.client(id, way) for id, way in zip(named(3), Way, strict=True)]
            body = json.dumps({"input": "a weir"})
            for client in clients:
                head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
                await client.send((head + body).encode())
            await until(lambda: here.retrieval.embedding == 3, "all of them at the embedder")
            for client in clients:
                client.leave()
            await until(lambda: here.retrieval.left == 3, "the embedder let go")
            assert await here.stand.counted() == {Outcome.CLIENT_GONE: 3}
            assert await here.stand.samples("weir_inflight") == [("", 0.0)]

    run(main)
