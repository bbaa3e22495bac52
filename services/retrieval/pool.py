"""A few connections, kept open in the background and lent for one query at a time.

A request never connects: that hangs on a frozen server and fails slowly on a full one. The keeper connects, one attempt
at a time, with growing and jittered pauses after failures (`MAX_PAUSE_S`), so that a restarted server is not stampeded.

Without any connection `take` fails at once; with all of them lent, up to `max_waiting` callers queue. A caller that
states its query's duration is rejected on arrival, or skipped in the queue, once the query could not finish in time.
Otherwise a long queue would lend connections only to callers that are about to give up.

A connection may come back with a transaction to end. The next caller takes it as it is; if none waits, it is settled in
the background, within `SETTLE_WITHIN_S`, before it becomes idle.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from services.retrieval.deadline import cancel_and_wait, with_deadline
from services.runtime.errors import place_of
from services.runtime.log import Log
from services.runtime.ordered import OrderedSet

PAUSE_S = 0.1
MAX_PAUSE_S = 2.0
SETTLE_WITHIN_S = 1.0


class DatabaseDown(Exception):
    """There is no connection."""


class PoolBusy(Exception):
    """All connections are lent, and none came back in time."""


class PooledConnection(Protocol):
    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...

    def on_lost(self, callback: Callable[[], None]) -> None: ...

    @property
    def unsettled(self) -> bool: ...

    async def settle(self) -> None: ...


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """Connections made by `connect`, which must raise within a bounded time if it fails."""

    def __init__(
        self, connect: Callable[[], Awaitable[C]], *, size: int, max_waiting: int, log: Log, chance: random.Random
    ) -> None:
        self._connect = connect
        self._size = size
        self._max_waiting = max_waiting
        self._log = log
        self._chance = chance
        self._open: OrderedSet[C] = OrderedSet()
        self._idle: dict[C, None] = {}  # in order of return; the latest is lent first
        self._waiting: deque[tuple[asyncio.Future[C], float]] = deque()  # with the time by which its query must begin
        self._settling: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._wanted = asyncio.Event()
        self._failures = 0
        self._was_up: bool | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.fault: str | None = None

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def in_use(self) -> int:
        """Connections that are lent or settling."""
        return len(self._open) - len(self._idle)

    def start(self) -> None:
        self._wanted.set()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="postgres-keeper")

    async def stop(self) -> None:
        """Close all connections without waiting for the server's reply."""
        await cancel_and_wait(self._keeper)
        for task in self._settling:
            task.cancel()
        leaving = list(self._open)
        self._open.clear()
        self._idle.clear()
        self._fail_waiting()
        for connection in leaving:
            connection.terminate()

    async def take(self, deadline: float, needs_s: float = 0.0) -> C:
        """A connection, until `give_back` or `discard`, for a query that takes `needs_s` seconds.

        Raises `DatabaseDown` at once. Raises `PoolBusy` at once if the queue is too long, else when the query must have
        begun.
        """
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_closed():
                return connection
            self._forget(connection)
        if not self._open:
            raise DatabaseDown(self.fault or "not connected")
        begin_by = deadline - needs_s
        expected_s = needs_s * (len(self._waiting) + 1) / len(self._open)
        if len(self._waiting) >= self._max_waiting or asyncio.get_running_loop().time() + expected_s > begin_by:
            raise PoolBusy
        return await self._wait_in_line(begin_by)

    async def _wait_in_line(self, begin_by: float) -> C:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[C] = loop.create_future()
        self._waiting.append((waiter, begin_by))
        try:
            await asyncio.wait({waiter}, timeout=max(0.0, begin_by - loop.time()))
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back(waiter.result())  # it was lent at this very moment
            waiter.cancel()
            raise
        if not waiter.done():
            waiter.cancel()
        if waiter.cancelled():
            raise PoolBusy
        return waiter.result()

    def give_back(self, connection: C) -> None:
        """The query was answered, even if with an error: the connection is sound."""
        self._failures = 0
        if connection.is_closed() or connection not in self._open:
            self._forget(connection)
            return
        now = asyncio.get_running_loop().time()
        while self._waiting:
            waiter, begin_by = self._waiting.popleft()
            if waiter.done():
                continue
            if now <= begin_by:
                waiter.set_result(connection)
                return
            waiter.cancel()
        if connection.unsettled:
            task = asyncio.get_running_loop().create_task(self._settle(connection), name="postgres-settle")
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        else:
            assert connection not in self._idle, f"a connection was given back twice: {self!r}"
            self._idle[connection] = None

    async def _settle(self, connection: C) -> None:
        try:
            await with_deadline(asyncio.get_running_loop().time() + SETTLE_WITHIN_S, connection.settle())
        except Exception:  # late, lost or out of step: not safe for another query
            self.discard(connection)
        else:
            self.give_back(connection)

    def discard(self, connection: C) -> None:
        """The query was not answered: close the connection."""
        connection.terminate()
        self._failures += 1
        self._forget(connection)

    def discard_idle(self) -> None:
        """The server does not answer: idle connections are no better than the one that was tried."""
        for connection in list(self._idle):
            self.discard(connection)

    def _forget(self, connection: C) -> None:
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._wanted.set()
        if not self._open:
            self._fail_waiting()
            self._note(up=False, fault="all connections were lost")

    def _fail_waiting(self) -> None:
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(DatabaseDown("all connections were lost"))

    async def _keep(self) -> None:
        while True:
            await self._wanted.wait()
            if len(self._open) >= self._size:
                self._wanted.clear()
                continue
            await asyncio.sleep(self._pause_s())
            try:
                await self._add_one()
            except Exception as error:  # a fault of this code: go on with the next attempt
                self._failures += 1
                self._log.error("a new connection could not be assigned", traceback=place_of(error))

    def _pause_s(self) -> float:
        if self._failures == 0:
            return 0.0
        longest = min(PAUSE_S * 2 ** min(self._failures - 1, 10), MAX_PAUSE_S)
        return self._chance.uniform(longest / 2, longest)

    async def _add_one(self) -> None:
        try:
            connection = await self._connect()
        except Exception as error:  # refused, timed out, wrong password, no such database
            self._failures += 1
            if not self._open:
                self._note(up=False, fault=describe(error))
            return
        self._open.add(connection)
        assert len(self._open) <= self._size, f"one connection too many: {self!r}"
        connection.on_lost(lambda: self._forget(connection))
        self._note(up=True)
        self._failures, failures = 0, self._failures
        self.give_back(connection)
        self._failures = failures  # only an answered query shows that the server works

    def __repr__(self) -> str:
        return f"<Pool {self.in_use} lent of {self.open}, at most {self._size}, {len(self._waiting)} wait>"

    def _note(self, *, up: bool, fault: str | None = None) -> None:
        self.fault = fault
        if up is self._was_up:
            return
        self._was_up = up
        if up:
            self._log.info("postgres is up")
        else:
            self._log.warning("postgres is down", error=fault)


def describe(error: BaseException) -> str:
    """An error in one short line, without the address, which may hold a password."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
