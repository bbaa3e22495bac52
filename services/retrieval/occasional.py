"""Connections for work that comes now and then: made when they are wanted, kept for a while, then given up.

PostgreSQL has few connections, and searches have the first call on them. So whoever writes now and then holds none in
between, and makes none while `may_connect` says that others still lack theirs: it waits a moment for that, then is told
`Down`. (Searches never connect in a request; a document that is written can afford to, and its wait is bounded.)

Bounds: at most `size` connections; at most `max_waiting` wait for one; `PATIENCE_S` for others' connections; an idle
connection lives for `idle_s`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from services.retrieval.deadline import Late, leave_at
from services.retrieval.pool import Busy, Down, describe
from services.runtime.ordered import OrderedSet

IDLE_S = 10.0
PATIENCE_S = 1.0
LOOK_EVERY_S = 0.02


class Connection(Protocol):
    """What is needed of one."""

    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Occasional(Generic[C]):
    """Connections made by `connect`, which raises when it cannot and takes a bounded time to find out."""

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, C]],
        *,
        size: int,
        max_waiting: int,
        may_connect: Callable[[], bool],
        idle_s: float = IDLE_S,
    ) -> None:
        self._connect = connect
        self._places = asyncio.Semaphore(size)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._may_connect = may_connect
        self._idle_s = idle_s
        self._idle: deque[tuple[C, asyncio.TimerHandle]] = deque()
        self._lent: OrderedSet[C] = OrderedSet()

    @property
    def open(self) -> int:
        """Connections that stand, idle or lent."""
        return len(self._idle) + len(self._lent)

    async def take(self, deadline: float) -> C:
        """A connection, until it is given back or discarded. Raises `Busy` by the deadline, or `Down`."""
        await self._place(deadline)
        try:
            connection = self._newest_idle() or await self._made(deadline)
        except BaseException:
            self._places.release()
            raise
        assert connection not in self._lent, f"a connection was lent twice: {self!r}"
        self._lent.add(connection)
        return connection

    def give_back(self, connection: C) -> None:
        """It is sound: the next who wants one may have it for a while."""
        if not self._returned(connection) or connection.is_closed():
            return
        giving_up = asyncio.get_running_loop().call_later(self._idle_s, self._give_up, connection)
        self._idle.append((connection, giving_up))

    def discard(self, connection: C) -> None:
        """Nobody may use it again."""
        connection.terminate()
        self._returned(connection)

    def stop(self) -> None:
        """Close everything, without waiting for the server's farewell."""
        while self._idle:
            connection, giving_up = self._idle.pop()
            giving_up.cancel()
            connection.terminate()
        for connection in list(self._lent):
            self.discard(connection)

    async def _place(self, deadline: float) -> None:
        if self._places.locked() and self._waiting >= self._max_waiting:
            raise Busy
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            raise Busy from None
        finally:
            self._waiting -= 1

    def _newest_idle(self) -> C | None:
        while self._idle:
            connection, giving_up = self._idle.pop()
            giving_up.cancel()
            if not connection.is_closed():
                return connection
        return None

    async def _made(self, deadline: float) -> C:
        await self._until_allowed(deadline)
        making = asyncio.get_running_loop().create_task(self._connect())
        try:
            return await leave_at(deadline, making)
        except Late:
            _give_up_making(making)
            raise Busy from None
        except asyncio.CancelledError:
            _give_up_making(making)
            raise
        except Exception as error:  # refused, timed out, wrong password, no such database: all mean not now
            raise Down(describe(error)) from None

    async def _until_allowed(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + PATIENCE_S)
        while not self._may_connect():
            if loop.time() >= until:
                raise Down("searches have not got their connections yet")
            await asyncio.sleep(LOOK_EVERY_S)

    def _returned(self, connection: C) -> bool:
        """False for one that had been returned before."""
        if connection not in self._lent:
            return False
        self._lent.discard(connection)
        self._places.release()
        return True

    def _give_up(self, connection: C) -> None:
        self._idle = deque(kept for kept in self._idle if kept[0] is not connection)
        connection.terminate()

    def __repr__(self) -> str:
        return f"<Occasional {len(self._lent)} lent, {len(self._idle)} idle, {self._waiting} waiting>"


def _give_up_making(making: asyncio.Task[C]) -> None:
    """It may have been made all the same, at this very moment: then nobody will ask for it."""
    making.cancel()
    making.add_done_callback(_terminate_unwanted)


def _terminate_unwanted(made: asyncio.Task[C]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().terminate()
