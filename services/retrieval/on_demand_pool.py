"""Connections for occasional writes: opened on demand and closed when idle (`idle_s`).

PostgreSQL has few connections and searches come first. So none is opened while `may_connect` is false because searches
lack theirs: a caller then waits `MAX_CONNECT_WAIT_S`, and gets `DatabaseDown`. At most `size` connections are open, and
at most `max_waiting` callers wait for one. A search never connects (`pool.py`); a write can afford to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from services.retrieval.deadline import DeadlineExceeded, wait_until
from services.retrieval.pool import DatabaseDown, PoolBusy, describe
from services.runtime.ordered import OrderedSet

IDLE_S = 10.0
MAX_CONNECT_WAIT_S = 1.0
POLL_S = 0.02


class ClosableConnection(Protocol):
    def is_closed(self) -> bool: ...

    def terminate(self) -> None: ...


C = TypeVar("C", bound=ClosableConnection)


class OnDemandPool(Generic[C]):
    """Connections made by `connect`, which must raise within a bounded time if it fails."""

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
        self._slots = asyncio.Semaphore(size)
        self._max_waiting = max_waiting
        self._waiting = 0
        self._may_connect = may_connect
        self._idle_s = idle_s
        self._idle: deque[tuple[C, asyncio.TimerHandle]] = deque()
        self._in_use: OrderedSet[C] = OrderedSet()

    @property
    def open(self) -> int:
        return len(self._idle) + len(self._in_use)

    async def take(self, deadline: float) -> C:
        """A connection, until `give_back` or `discard`. Raises `PoolBusy` by the deadline, or `DatabaseDown`."""
        await self._acquire_slot(deadline)
        try:
            connection = self._newest_idle() or await self._connected(deadline)
        except BaseException:
            self._slots.release()
            raise
        assert connection not in self._in_use, f"a connection was lent twice: {self!r}"
        self._in_use.add(connection)
        return connection

    def give_back(self, connection: C) -> None:
        """The connection is sound: keep it idle for a while."""
        if not self._release(connection) or connection.is_closed():
            return
        closing = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle, connection)
        self._idle.append((connection, closing))

    def discard(self, connection: C) -> None:
        """Close a connection that must not be used again."""
        connection.terminate()
        self._release(connection)

    def stop(self) -> None:
        """Close all connections without waiting for the server's reply."""
        while self._idle:
            connection, closing = self._idle.pop()
            closing.cancel()
            connection.terminate()
        for connection in list(self._in_use):
            self.discard(connection)

    async def _acquire_slot(self, deadline: float) -> None:
        if self._slots.locked() and self._waiting >= self._max_waiting:
            raise PoolBusy
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise PoolBusy from None
        finally:
            self._waiting -= 1

    def _newest_idle(self) -> C | None:
        while self._idle:
            connection, closing = self._idle.pop()
            closing.cancel()
            if not connection.is_closed():
                return connection
        return None

    async def _connected(self, deadline: float) -> C:
        await self._wait_until_allowed(deadline)
        connecting = asyncio.get_running_loop().create_task(self._connect())
        try:
            return await wait_until(deadline, connecting)
        except DeadlineExceeded:
            _abandon(connecting)
            raise PoolBusy from None
        except asyncio.CancelledError:
            _abandon(connecting)
            raise
        except Exception as error:  # refused, timed out, wrong password, no such database
            raise DatabaseDown(describe(error)) from None

    async def _wait_until_allowed(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        until = min(deadline, loop.time() + MAX_CONNECT_WAIT_S)
        while not self._may_connect():
            if loop.time() >= until:
                raise DatabaseDown("searches have not got their connections yet")
            await asyncio.sleep(POLL_S)

    def _release(self, connection: C) -> bool:
        """False for a connection that was already returned."""
        if connection not in self._in_use:
            return False
        self._in_use.discard(connection)
        self._slots.release()
        return True

    def _close_idle(self, connection: C) -> None:
        self._idle = deque(idle for idle in self._idle if idle[0] is not connection)
        connection.terminate()

    def __repr__(self) -> str:
        return f"<OnDemandPool {len(self._in_use)} lent, {len(self._idle)} idle, {self._waiting} waiting>"


def _abandon(connecting: asyncio.Task[C]) -> None:
    """Cancel the attempt; if it succeeded at this very moment, close its connection."""
    connecting.cancel()
    connecting.add_done_callback(_terminate_unused)


def _terminate_unused(connected: asyncio.Task[C]) -> None:
    if not connected.cancelled() and connected.exception() is None:
        connected.result().terminate()
