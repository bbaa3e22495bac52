"""Connections that are made when they are wanted: never more than allowed, never before searches have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.retrieval.on_demand_pool import MAX_CONNECT_WAIT_S, OnDemandPool
from services.retrieval.pool import DatabaseDown, PoolBusy
from tests.retrieval.fakes import FakeConnection
from tests.virtual import run

IDLE_S = 10.0
MAKING_S = 0.01


class Server:
    """Makes connections, or refuses, or hangs; `stingy`: those who search still lack theirs."""

    def __init__(self) -> None:
        self.connected: list[FakeConnection] = []
        self.fault: Exception | None = None
        self.hangs_s = MAKING_S
        self.stingy = False
        self.finishes_all_the_same = False

    async def connect(self) -> FakeConnection:
        try:
            await asyncio.sleep(self.hangs_s)
        except asyncio.CancelledError:
            if not self.finishes_all_the_same:
                raise
        if self.fault is not None:
            raise self.fault
        self.connected.append(FakeConnection())
        return self.connected[-1]

    @property
    def standing(self) -> int:
        return sum(not connection.is_closed() for connection in self.connected)


Scenario = Callable[[OnDemandPool[FakeConnection], Server], Awaitable[None]]


def play(scenario: Scenario, *, size: int = 2, max_waiting: int = 2) -> None:
    async def main() -> None:
        server = Server()
        lender = OnDemandPool(
            server.connect, size=size, max_waiting=max_waiting, may_connect=lambda: not server.stingy, idle_s=IDLE_S
        )
        await scenario(lender, server)
        lender.stop()
        assert (server.standing, lender.open) == (0, 0)

    run(main())


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_there_is_no_connection_before_one_is_wanted_nor_long_after() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        await asyncio.sleep(60)
        assert server.connected == []
        lender.give_back(await lender.take(soon()))
        await asyncio.sleep(IDLE_S - 1)
        assert server.standing == lender.open == 1
        await asyncio.sleep(1.1)
        assert server.standing == lender.open == 0

    play(scenario)


def test_what_was_given_back_is_lent_again_and_its_time_begins_anew() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        first = await lender.take(soon())
        lender.give_back(first)
        await asyncio.sleep(IDLE_S - 1)
        assert await lender.take(soon()) is first
        await asyncio.sleep(IDLE_S)
        assert not first.is_closed()
        lender.give_back(first)
        await asyncio.sleep(IDLE_S - 1)
        assert server.standing == 1

    play(scenario)


def test_one_that_the_server_has_closed_is_not_lent_again() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        first = await lender.take(soon())
        lender.give_back(first)
        first.lose()
        second = await lender.take(soon())
        assert second is not first
        second.lose()
        lender.give_back(second)
        assert lender.open == 0

    play(scenario)


def test_no_more_than_its_size_are_made_and_the_next_waits_its_turn() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        first, second = await lender.take(soon()), await lender.take(soon())
        third = asyncio.create_task(lender.take(soon()))
        await asyncio.sleep(1)
        assert not third.done()
        lender.give_back(second)
        assert await third is second
        with pytest.raises(PoolBusy):
            await lender.take(soon(0.5))
        lender.discard(first)
        assert await lender.take(soon()) is server.connected[2]
        assert server.standing == 2

    play(scenario)


def test_beyond_its_bound_nobody_waits() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        in_use = await lender.take(soon())
        waiting = [asyncio.create_task(lender.take(soon(60))) for _ in range(2)]
        await asyncio.sleep(0)
        began = soon(0)
        with pytest.raises(PoolBusy):
            await lender.take(soon(60))
        assert soon(0) == began
        lender.give_back(in_use)
        for task in waiting:
            lender.give_back(await task)

    play(scenario, size=1)


def test_while_searches_lack_theirs_none_is_made_for_a_moment_and_then_it_is_said() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        server.stingy = True
        began = soon(0)
        with pytest.raises(DatabaseDown, match="searches"):
            await lender.take(soon(60))
        assert MAX_CONNECT_WAIT_S <= soon(0) - began < MAX_CONNECT_WAIT_S + 0.1
        assert server.connected == []
        taking = asyncio.create_task(lender.take(soon(60)))
        await asyncio.sleep(MAX_CONNECT_WAIT_S / 2)
        server.stingy = False
        assert await taking is server.connected[0]

    play(scenario, size=1)


def test_a_server_that_refuses_is_down_and_one_that_hangs_is_waited_for_until_the_deadline() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        server.fault = ConnectionRefusedError("refused")
        for _ in range(5):  # and keeps no place for what failed
            with pytest.raises(DatabaseDown, match="refused"):
                await lender.take(soon())
        server.fault, server.hangs_s = None, 60.0
        began = soon(0)
        with pytest.raises(PoolBusy):
            await lender.take(soon(2))
        assert soon(0) - began == pytest.approx(2)
        server.hangs_s = MAKING_S
        await lender.take(soon())

    play(scenario, size=1)


def test_a_connection_that_was_made_too_late_is_closed() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        server.finishes_all_the_same, server.hangs_s = True, 60.0
        with pytest.raises(PoolBusy):
            await lender.take(soon(2))
        leaving = asyncio.create_task(lender.take(soon()))
        await asyncio.sleep(1)
        leaving.cancel()
        await asyncio.wait({leaving})
        await asyncio.sleep(0.1)
        assert (len(server.connected), server.standing, lender.open) == (2, 0, 0)

    play(scenario, size=1)


def test_one_who_leaves_the_line_leaves_his_place_to_the_next() -> None:
    async def scenario(lender: OnDemandPool[FakeConnection], server: Server) -> None:
        in_use = await lender.take(soon())
        first, second = (asyncio.create_task(lender.take(soon(60))) for _ in range(2))
        await asyncio.sleep(1)
        lender.give_back(in_use)
        first.cancel()
        assert await second is in_use
        assert first.cancelled()

    play(scenario, size=1)
