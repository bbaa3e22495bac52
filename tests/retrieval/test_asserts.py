"""Every assertion of retrieval sees its fault; one that fires in a background task is told, and the service goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from services.retrieval import embedder as embedding
from services.retrieval.embedder import EmbedderFailed, QueuedEmbedder
from services.retrieval.embedding_batcher import plan_batch
from services.retrieval.flight import Flights
from services.retrieval.on_demand_pool import OnDemandPool
from services.retrieval.pool import ConnectionPool
from tests.retrieval.fakes import FakeConnection, Lines
from tests.retrieval.test_embedder import FakeModel, ask, with_embedder
from tests.retrieval.test_pool import Server, with_pool
from tests.virtual import run


@dataclass
class Text:
    due: float = 100.0
    tokens: int = 1


async def lent_and_idle_twice() -> None:
    server, lines = Server(), Lines()
    pool = ConnectionPool(server.connect, size=2, max_waiting=2, log=lines.log, chance=random.Random(1))
    pool.start()
    await asyncio.sleep(0.1)
    try:
        connection = await pool.take(1.0)
        pool.give_back(connection)
        pool.give_back(connection)
    finally:
        await pool.stop()


async def one_connection_too_many() -> None:
    pool = ConnectionPool(Server().connect, size=1, max_waiting=2, log=Lines().log, chance=random.Random(1))
    await pool._add_one()
    await pool._add_one()


async def a_connection_lent_to_two() -> None:
    connection = FakeConnection()

    async def same() -> FakeConnection:
        return connection

    occasional = OnDemandPool(same, size=2, max_waiting=2, may_connect=lambda: True)
    for _ in range(2):
        await occasional.take(10.0)


async def shared_less_than_nothing() -> None:
    flights: Flights[None] = Flights(max_shared=4)
    joined = asyncio.create_task(flights.join("key", lambda: asyncio.sleep(1)))
    await asyncio.sleep(0.5)
    flights.shared = 0
    flights._close("key", flights._flights["key"][0])
    joined.cancel()


async def shared_more_than_runs() -> None:
    flights: Flights[None] = Flights(max_shared=4)
    flights.shared = 2
    await flights.join("key", lambda: asyncio.sleep(1))


async def a_text_planned_by_nobody() -> None:
    class Nowhere(list[Text]):
        def __len__(self) -> int:
            return 3

    plan_batch(Nowhere([Text()]), free_at=0.0, is_idle=True, max_texts=4, duration_s=lambda _: 1.0)


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (lent_and_idle_twice, "a connection was given back twice: <Pool 0 lent of 2"),
    (one_connection_too_many, "one connection too many: <Pool .* of 2, at most 1"),
    (a_connection_lent_to_two, "a connection was lent twice: <OnDemandPool 1 lent"),
    (shared_less_than_nothing, "-1 pieces of work can be joined, 1 run"),
    (shared_more_than_runs, "3 pieces of work can be joined, 1 run"),
    (a_text_planned_by_nobody, "1 of 3 texts are planned: 1, 0, 0"),
]


@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], Any], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        run(plant())


def test_the_keeper_of_connections_goes_on_after_one_that_fires() -> None:
    faults = 0

    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        nonlocal faults
        give_back = pool.give_back

        def once_faulty(connection: FakeConnection) -> None:
            nonlocal faults
            faults += 1
            if faults == 1:
                raise AssertionError("2 of 1")
            give_back(connection)

        pool.give_back = once_faulty  # type: ignore[method-assign]
        for connection in list(pool._idle):
            pool.discard(connection)
        await asyncio.sleep(10.0)
        assert pool.open == 2

    assert "a new connection could not be assigned" in with_pool(scenario)
    assert faults >= 2


def test_an_embedder_whose_line_has_stopped_is_not_ready_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caught: list[Any] = []

    async def scenario(embedder: QueuedEmbedder, model: FakeModel) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
        first = ask(embedder, "first")
        await asyncio.sleep(0.001)
        waits = ask(embedder, "second")
        await asyncio.sleep(0.001)

        def broken(*_: Any, **__: Any) -> None:
            raise AssertionError("1 of 3 texts")

        monkeypatch.setattr(embedding, "plan_batch", broken)
        await first
        with pytest.raises(EmbedderFailed, match="stopped"):
            await waits
        assert not embedder.warm

    with_embedder(scenario)
    assert [str(error) for error in caught] == ["1 of 3 texts"]
