"""A client machine: its connections to one server and its requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop


class Asked:
    """A request of a client. It ends once. Times are the client's loop's. `end`: how; empty on success."""

    __slots__ = ("end", "ended_at", "sent_at", "timer")

    def __init__(self) -> None:
        self.sent_at = 0.0
        self.ended_at: float | None = None
        self.end = ""
        self.timer: asyncio.TimerHandle | None = None


class Wire(asyncio.Protocol):
    """A connection of a machine. The machine closes it after `rests_s` idle seconds, sooner than the server does."""

    rests_s = 60.0

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.transport: Any = None
        self.idle_since = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    @property
    def open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def usable(self) -> bool:
        """Open, and not idle for too long."""
        return self.open and self.loop.time() - self.idle_since < self.rests_s

    def abort(self) -> None:
        self.transport.abort()


R = TypeVar("R", bound=Asked)
W = TypeVar("W", bound=Wire)


class Machine(Generic[R, W]):
    """Calls `on_end` once for each request. `garbage`: bytes received without a request."""

    def __init__(self, loop: SimLoop, server: tuple[str, int], on_end: Callable[[R], None]) -> None:
        self.loop = loop
        self.garbage: list[str] = []
        self._server = server
        self._on_end = on_end
        self._idle: list[W] = []
        self._connections: dict[W, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def idle(self) -> W | None:
        """The usable connection that became idle last; others idle for too long are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def idle_again(self, connection: W | None) -> W | None:
        """This connection, if it is idle and usable."""
        if connection is None or connection not in self._idle or not connection.usable:
            return None
        self._idle.remove(connection)
        return connection

    def rest(self, connection: W) -> None:
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: W) -> None:
        self._connections.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until it ends or the machine closes."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def ended(self, asked: R, end: str) -> None:
        assert asked.ended_at is None, f"{asked!r} ends twice"
        asked.ended_at, asked.end = self.loop.time(), end
        if asked.timer is not None:
            asked.timer.cancel()
            asked.timer = None
        self._on_end(asked)

    def make_room(self) -> None:
        """Close idle connections, so that other machines can connect."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def close(self) -> None:
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
