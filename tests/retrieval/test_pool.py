"""The pool heals by itself, never makes a request connect, and lends each connection to one at a time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from services.retrieval.pool import MAX_PAUSE_S, SETTLE_WITHIN_S, ConnectionPool, DatabaseDown, PoolBusy
from tests.retrieval.fakes import FakeConnection, Lines
from tests.virtual import run


class Server:
    """Makes connections, or refuses, or hangs."""

    def __init__(self) -> None:
        self.made: list[FakeConnection] = []
        self.attempts: list[float] = []
        self.fault: Exception | None = None
        self.hangs = False

    async def connect(self) -> FakeConnection:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.hangs:
            await asyncio.sleep(3)
            raise TimeoutError("no connection within 3 s")
        await asyncio.sleep(0.01)
        if self.fault is not None:
            raise self.fault
        self.made.append(FakeConnection())
        return self.made[-1]

    def go_down(self) -> None:
        self.fault = ConnectionRefusedError("refused")
        for connection in self.made:
            connection.lose()


def with_pool(
    scenario: Callable[[ConnectionPool[FakeConnection], Server], Awaitable[None]],
    *,
    size: int = 2,
    down: bool = False,
    server: Server | None = None,
    max_waiting: int = 2,
) -> str:
    """Run a scenario on a started pool; returns what was logged."""
    lines = Lines()

    server = server or Server()

    async def main() -> None:
        server.fault = ConnectionRefusedError("refused") if down else None
        pool = ConnectionPool(
            server.connect, size=size, max_waiting=max_waiting, log=lines.log, chance=random.Random(1)
        )
        pool.start()
        await asyncio.sleep(0.1)
        try:
            await scenario(pool, server)
        finally:
            await pool.stop()

    run(main())
    return lines.read()


def test_it_connects_before_anyone_asks() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        assert (pool.open, pool.in_use) == (2, 0)
        before = asyncio.get_running_loop().time()
        await pool.take(before)
        assert asyncio.get_running_loop().time() == before
        assert (pool.open, pool.in_use) == (2, 1)

    with_pool(scenario)


def test_with_no_connection_it_says_so_at_once_and_why() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        before = asyncio.get_running_loop().time()
        with pytest.raises(DatabaseDown, match="ConnectionRefusedError: refused"):
            await pool.take(before + 60)
        assert asyncio.get_running_loop().time() == before

    with_pool(scenario, down=True)


def test_those_who_wait_are_served_in_order_and_too_many_are_not_let_in() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        now = asyncio.get_running_loop().time()
        in_use = [await pool.take(now), await pool.take(now)]
        served: list[str] = []

        async def wait(name: str) -> None:
            connection = await pool.take(now + 1)
            served.append(name)
            pool.give_back(connection)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("first"))
            group.create_task(wait("second"))
            await asyncio.sleep(0)
            with pytest.raises(PoolBusy):
                await pool.take(now + 1)
            pool.give_back(in_use[0])
        assert served == ["first", "second"]
        assert pool.in_use == 1

    with_pool(scenario)


def test_a_wait_ends_at_its_deadline() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await pool.take(began)
        with pytest.raises(PoolBusy):
            await pool.take(began + 0.5)
        assert loop.time() == pytest.approx(began + 0.5)

    with_pool(scenario, size=1)


def test_one_that_leaves_as_it_is_served_does_not_take_the_connection_along() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        now = asyncio.get_running_loop().time()
        connection = await pool.take(now)
        waiting = asyncio.create_task(pool.take(now + 1))
        await asyncio.sleep(0)
        pool.give_back(connection)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert await pool.take(now) is connection

    with_pool(scenario, size=1)


def test_what_was_discarded_is_ended_and_replaced() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        connection = await pool.take(asyncio.get_running_loop().time())
        pool.discard(connection)
        assert connection.closed
        assert pool.open == 0
        await asyncio.sleep(1)
        assert pool.open == 1
        assert await pool.take(asyncio.get_running_loop().time()) is not connection

    with_pool(scenario, size=1)


def test_those_that_lie_idle_can_be_discarded_and_one_that_is_lent_is_left_to_its_query() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        now = asyncio.get_running_loop().time()
        in_use = await pool.take(now)
        idle = [connection for connection in server.made if connection is not in_use]
        pool.discard_idle()
        assert [connection.closed for connection in idle] == [True, True]
        assert not in_use.closed
        assert (pool.open, pool.in_use) == (1, 1)
        pool.give_back(in_use)
        await asyncio.sleep(2)
        assert (pool.open, pool.in_use) == (3, 0)

    with_pool(scenario, size=3)


def test_one_that_the_server_closed_is_not_lent() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        server.made[-1].lose()
        assert pool.open == 1
        assert await pool.take(asyncio.get_running_loop().time()) is server.made[0]

    with_pool(scenario)


def test_it_comes_back_by_itself_and_says_each_change_once() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        server.go_down()
        await asyncio.sleep(30)
        with pytest.raises(DatabaseDown):
            await pool.take(0)
        server.fault = None
        await asyncio.sleep(MAX_PAUSE_S + 0.1)
        assert pool.open == 2

    logged = with_pool(scenario)
    assert logged.count("postgres is down") == 1
    assert logged.count("postgres is up") == 2


def test_those_who_wait_when_everything_is_lost_are_told_at_once() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        await pool.take(now)
        waiting = asyncio.create_task(pool.take(now + 60))
        await asyncio.sleep(0)
        server.go_down()
        with pytest.raises(DatabaseDown):
            await waiting
        assert loop.time() == now

    with_pool(scenario, size=1)


def test_pauses_between_attempts_grow_to_a_limit_and_differ() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        await asyncio.sleep(60)
        pauses = [after - before for before, after in itertools.pairwise(server.attempts)]
        assert max(pauses) <= MAX_PAUSE_S + 0.02
        assert min(pauses[-10:]) >= MAX_PAUSE_S / 2
        assert len(set(pauses[-10:])) == 10

    with_pool(scenario, down=True)


def test_a_server_that_accepts_but_never_answers_is_not_hammered() -> None:
    """Each new connection is discarded unused: connecting alone proves nothing, so the pauses grow all the same."""

    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        end = asyncio.get_running_loop().time() + 60
        while (now := asyncio.get_running_loop().time()) < end:
            try:
                pool.discard(await pool.take(now))
            except DatabaseDown:
                await asyncio.sleep(0.01)
        assert len(server.attempts) < 60

    with_pool(scenario, size=1)


class Unhurried(FakeConnection):
    """Takes its time to settle, or fails at it."""

    def __init__(self, takes_s: float, fails: bool) -> None:
        super().__init__()
        self._takes_s = takes_s
        self._fails = fails

    async def settle(self) -> None:
        await asyncio.sleep(self._takes_s)
        if self._fails:
            raise ConnectionResetError
        self.unsettled = False


class Untidy(Server):
    """Its connections come back with something left to end."""

    def __init__(self, takes_s: float = 0.1, *, fails: bool = False) -> None:
        super().__init__()
        self._takes_s = takes_s
        self._fails = fails

    async def connect(self) -> FakeConnection:
        await super().connect()
        self.made[-1] = Unhurried(self._takes_s, self._fails)
        return self.made[-1]


def test_what_comes_back_unsettled_lies_idle_only_when_it_has_settled() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        now = asyncio.get_running_loop().time()
        connection = await pool.take(now)
        connection.unsettled = True
        pool.give_back(connection)
        assert (pool.open, pool.in_use) == (1, 1)
        with pytest.raises(PoolBusy):
            await pool.take(now + 0.05)
        assert await pool.take(now + 0.2) is connection
        assert asyncio.get_running_loop().time() == pytest.approx(now + 0.1)
        assert not connection.unsettled

    with_pool(scenario, size=1, server=Untidy())


def test_the_next_in_line_does_not_wait_for_it_to_settle() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        now = asyncio.get_running_loop().time()
        connection = await pool.take(now)
        next_one = asyncio.create_task(pool.take(now + 1))
        await asyncio.sleep(0)
        connection.unsettled = True
        pool.give_back(connection)
        assert await next_one is connection
        assert connection.unsettled
        assert asyncio.get_running_loop().time() == now

    with_pool(scenario, size=1, server=Untidy())


@pytest.mark.parametrize("untidy", [Untidy(60.0), Untidy(0.1, fails=True)], ids=["never", "fails"])
def test_what_does_not_settle_is_replaced(untidy: Untidy) -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        connection = await pool.take(asyncio.get_running_loop().time())
        connection.unsettled = True
        pool.give_back(connection)
        await asyncio.sleep(SETTLE_WITHIN_S + 1)
        assert connection.closed
        assert (pool.open, pool.in_use) == (1, 0)
        assert await pool.take(asyncio.get_running_loop().time()) is not connection

    with_pool(scenario, size=1, server=untidy)


def test_a_pool_that_stops_waits_for_nothing_to_settle() -> None:
    left: list[FakeConnection] = []

    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        connection = await pool.take(loop.time())
        connection.unsettled = True
        pool.give_back(connection)
        began = loop.time()
        await pool.stop()
        assert loop.time() == began
        await asyncio.sleep(0.01)
        assert "postgres-settle" not in {task.get_name() for task in asyncio.all_tasks()}
        left.append(connection)

    with_pool(scenario, size=1, server=Untidy(30.0))
    assert left[0].closed


def test_who_could_not_be_served_in_time_is_told_on_arrival() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await pool.take(began + 1, 0.2)
        with pytest.raises(PoolBusy):
            await pool.take(began + 0.39, 0.2)  # one before it, and itself
        assert loop.time() == began
        waiting = asyncio.create_task(pool.take(began + 0.41, 0.2))
        await asyncio.sleep(0)
        with pytest.raises(PoolBusy):
            await pool.take(began + 0.41, 0.2)
        assert loop.time() == began
        with pytest.raises(PoolBusy):
            await waiting
        assert loop.time() == pytest.approx(began + 0.21)  # then there was no time left for a query

    with_pool(scenario, size=1)


def test_a_connection_that_comes_back_is_not_lent_to_one_who_has_run_out_of_time() -> None:
    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        connection = await pool.take(now)
        late = asyncio.create_task(pool.take(now + 0.41, 0.2))
        patient = asyncio.create_task(pool.take(now + 9, 0.2))
        await asyncio.sleep(0)
        loop.call_at(now + 0.21, lambda: loop.call_at(now + 0.22, pool.give_back, connection))
        assert await patient is connection
        with pytest.raises(PoolBusy):
            await late

    with_pool(scenario, size=1)


def test_a_crowd_that_needs_three_times_what_there_is_does_not_cost_those_who_can_be_served() -> None:
    """Ten connections' worth of arrivals come to three: as many answers in time as the three can give, less a tenth."""
    takes_s, client_timeout_s, every_s, seconds = 0.02, 0.1, 0.002, 4.0

    async def scenario(pool: ConnectionPool[FakeConnection], server: Server) -> None:
        loop = asyncio.get_running_loop()
        in_time = 0

        async def one() -> None:
            nonlocal in_time
            deadline = loop.time() + client_timeout_s
            try:
                connection = await pool.take(deadline, takes_s)
            except PoolBusy:
                return
            await asyncio.sleep(takes_s)
            pool.give_back(connection)
            in_time += loop.time() <= deadline

        began, crowd = loop.time(), []
        while loop.time() < began + seconds:
            crowd.append(asyncio.create_task(one()))
            await asyncio.sleep(every_s)
        await asyncio.gather(*crowd)
        assert in_time >= 0.9 * 3 * seconds / takes_s

    with_pool(scenario, size=3, max_waiting=1000)
