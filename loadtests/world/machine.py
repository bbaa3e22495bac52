"""A client machine: its connections to one server, and what it has asked and not heard the end of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop


class Asked:
    """What a client has asked. It ends once. Times are the client's loop's. `end`: how; empty where all is well."""

    __slots__ = ("end", "ended_at", "sent_at", "timer")

    def __init__(self) -> None:
        self.sent_at = 0.0
        self.ended_at: float | None = None
        self.end = ""
        self.timer: asyncio.TimerHandle | None = None


class Wire(asyncio.Protocol):
    """A connection of a machine. It is left when it has rested for `rests_s` seconds: sooner than the server does."""

    rests_s = 60.0

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.transport: Any = None
        self.idle_since = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    @property
    def open(self) -> bool:
        """Something can be sent."""
        return not self.transport.is_closing()

    @property
    def usable(self) -> bool:
        """It is open, and has not rested for too long."""
        return self.open and self.loop.time() - self.idle_since < self.rests_s

    def abort(self) -> None:
        """Hang up."""
        self.transport.abort()


R = TypeVar("R", bound=Asked)
W = TypeVar("W", bound=Wire)


class Machine(Generic[R, W]):
    """`on_end` is told of each end, once. `garbage`: what came that nobody had asked for."""

    def __init__(self, loop: SimLoop, server: tuple[str, int], on_end: Callable[[R], None]) -> None:
        self.loop = loop
        self.garbage: list[str] = []
        self._server = server
        self._on_end = on_end
        self._idle: list[W] = []
        self._connections: dict[W, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def idle(self) -> W | None:
        """The connection that has rested least, if one is usable; what has rested for too long is left."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def rest(self, connection: W) -> None:
        """That connection is free."""
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: W) -> None:
        """That connection is gone."""
        self._connections.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside everything else, until the machine hangs up."""
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def ended(self, asked: R, end: str) -> None:
        """A request is over."""
        assert asked.ended_at is None, f"{asked!r} ends twice"
        asked.ended_at, asked.end = self.loop.time(), end
        if asked.timer is not None:
            asked.timer.cancel()
            asked.timer = None
        self._on_end(asked)

    def make_room(self) -> None:
        """Hang up where nothing is asked, so that other machines find room."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
