"""One frame for all viewers, as server-sent events: made and encoded once, and only while there are viewers.

A viewer holds one pending frame; a newer one replaces it. So a slow reader gets fewer frames and none that is old, and
delays no other viewer. A client that reads nothing is disconnected after `WRITE_STALL_S`, as on any route.

Bounds: `max_viewers` viewers, each with one frame and its connection's buffers: 64 KiB here, and the kernel's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.contracts.problem import Details
from services.core.outcome import Outcome
from services.runtime.errors import WeirError, place_of
from services.runtime.http import Exchange
from services.runtime.log import Log
from services.runtime.ordered import OrderedSet

MAX_VIEWERS = 64
EVERY_S = 0.2
FULL_HINT_MS = 5000
EVENT_STREAM = b"text/event-stream; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"), (b"x-content-type-options", b"nosniff"))

Picture = Callable[[], bytes]
"""Makes a frame as one line of JSON."""


def event(name: str, data: bytes) -> bytes:
    """One server-sent event. `data` is JSON without a line break."""
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), data)


class Viewer:
    """One client of the stream: its pending frame, and the number of frames it missed."""

    __slots__ = ("_waiter", "missed", "over", "pending")

    def __init__(self) -> None:
        self.pending: bytes | None = None
        self.missed = 0
        self.over = False
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, picture: bytes) -> None:
        """Replace the pending frame with the newest."""
        if self.pending is not None:
            self.missed += 1
        self.pending = picture
        self._wake()

    def end(self) -> None:
        self.over = True
        self._wake()

    async def until_offered(self) -> None:
        """Wait until a frame is pending or the stream has ended."""
        while self.pending is None and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take(self) -> bytes:
        """Remove and return the pending frame."""
        picture, self.pending = self.pending, None
        assert picture is not None, "it was offered one"
        return picture

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Fanout:
    """All viewers of one frame. `pictures` counts the frames made."""

    def __init__(
        self, hello: Picture, picture: Picture, log: Log, *, max_viewers: int = MAX_VIEWERS, every_s: float = EVERY_S
    ) -> None:
        self.pictures = 0
        self.viewers: OrderedSet[Viewer] = OrderedSet()
        self._hello = hello
        self._picture = picture
        self._log = log
        self._max_viewers = max_viewers
        self._every_s = every_s
        self._newest: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    async def watch(self, exchange: Exchange) -> None:
        """Serve one viewer until it disconnects, or until `close`. Raises WeirError, 503, if there are too many."""
        if len(self.viewers) >= self._max_viewers:
            raise _too_many(self._max_viewers)
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        viewer = Viewer()
        self.viewers.add(viewer)
        try:
            await exchange.start(200, EVENT_STREAM, HEADERS)
            await exchange.write(event("hello", self._hello()))
            self._show_first(viewer)
            await self._send(exchange, viewer)
            await exchange.end()
        finally:
            self._forget(viewer)
            exchange.log["missed"] = viewer.missed

    async def _send(self, exchange: Exchange, viewer: Viewer) -> None:
        """Write frame after frame, each chosen when the connection can be written to."""
        while True:
            await viewer.until_offered()
            await exchange.write(b"")  # waits until the client has read what was written
            if viewer.over:
                return
            await exchange.write(viewer.take())

    def close(self) -> None:
        """End every stream; the clients connect again."""
        for viewer in self.viewers:
            viewer.end()

    def _show_first(self, viewer: Viewer) -> None:
        """Show a new viewer a frame at once: the newest one, or a new one if it is the only viewer."""
        if self._timer is None:
            self._due_at = asyncio.get_running_loop().time()
            self._show()
        elif self._newest is not None:
            viewer.offer(self._newest)

    def _forget(self, viewer: Viewer) -> None:
        """Stop the timer after the last viewer."""
        self.viewers.discard(viewer)
        if not self.viewers and self._timer is not None:
            self._timer.cancel()
            self._timer = self._newest = None

    def _show(self) -> None:
        self._timer = None
        try:
            self._newest = newest = event("frame", self._picture())
        except Exception as error:  # a fault in the frame's code ends the streams, and nothing else
            self._log.error("the console's picture could not be built", traceback=place_of(error))
            self.close()
            return
        self.pictures += 1
        for viewer in self.viewers:
            viewer.offer(newest)
        loop = asyncio.get_running_loop()
        self._due_at = max(self._due_at + self._every_s, loop.time())
        self._timer = loop.call_at(self._due_at, self._show)

    def __repr__(self) -> str:
        return f"<Fanout {len(self.viewers)}/{self._max_viewers} look, {self.pictures} pictures>"


def _too_many(max_viewers: int) -> WeirError:
    return WeirError(
        Outcome.YIELD,
        f"{max_viewers} viewers watch this console already; close one of them, or try again later",
        status=503,
        code="too_many_viewers",
        details=Details(retry_hint_ms=FULL_HINT_MS),
    )
