"""One picture for everybody who looks, as server-sent events: made once, encoded once, and only while somebody does.

A viewer has room for one picture that it has not taken yet; a newer one takes its place. So one that reads slowly gets
fewer pictures and none that is old, and holds back nobody else. One that does not read at all is cut off by the front
(`WRITE_STALL_S`), as any client is.

Bounds: `most` viewers, each with one picture of its own and what its connection's buffers hold: 64 KiB here, and what
the kernel keeps.
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

MOST_VIEWERS = 64
EVERY_S = 0.2
FULL_HINT_MS = 5000
EVENT_STREAM = b"text/event-stream; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"), (b"x-content-type-options", b"nosniff"))

Picture = Callable[[], bytes]
"""A picture as one line of JSON."""


def event(name: str, data: bytes) -> bytes:
    """One server-sent event. The data has no line break, as JSON has none."""
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), data)


class Viewer:
    """Who looks: the picture that it has not taken yet, and how many it has missed."""

    __slots__ = ("_waiter", "missed", "over", "pending")

    def __init__(self) -> None:
        self.pending: bytes | None = None
        self.missed = 0
        self.over = False
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, picture: bytes) -> None:
        """The newest picture. One that is still here has missed its time."""
        if self.pending is not None:
            self.missed += 1
        self.pending = picture
        self._wake()

    def end(self) -> None:
        """No more of them."""
        self.over = True
        self._wake()

    async def until_offered(self) -> None:
        """Wait for a picture, or for the end of them."""
        while self.pending is None and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take(self) -> bytes:
        """The newest picture. The place is free for the next."""
        picture, self.pending = self.pending, None
        assert picture is not None, "it was offered one"
        return picture

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Fanout:
    """All who look at one picture. `pictures` counts those that were made."""

    def __init__(
        self, hello: Picture, picture: Picture, log: Log, *, most: int = MOST_VIEWERS, every_s: float = EVERY_S
    ) -> None:
        self.pictures = 0
        self.viewers: OrderedSet[Viewer] = OrderedSet()
        self._hello = hello
        self._picture = picture
        self._log = log
        self._most = most
        self._every_s = every_s
        self._newest: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    async def watch(self, exchange: Exchange) -> None:
        """Serve one viewer until it leaves, or until `close`. Raises WeirError when there are too many."""
        if len(self.viewers) >= self._most:
            raise _too_many(self._most)
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
        """Picture after picture, each chosen when its turn to be written has come."""
        while True:
            await viewer.until_offered()
            await exchange.write(b"")  # nothing, in its turn: it comes back when the client has read
            if viewer.over:
                return
            await exchange.write(viewer.take())

    def close(self) -> None:
        """End every stream: whoever is still looking asks again."""
        for viewer in self.viewers:
            viewer.end()

    def _show_first(self, viewer: Viewer) -> None:
        """Whoever comes sees something at once: the newest picture of the others, or, if it is alone, a new one."""
        if self._timer is None:
            self._due_at = asyncio.get_running_loop().time()
            self._show()
        elif self._newest is not None:
            viewer.offer(self._newest)

    def _forget(self, viewer: Viewer) -> None:
        """The last one puts out the light."""
        self.viewers.discard(viewer)
        if not self.viewers and self._timer is not None:
            self._timer.cancel()
            self._timer = self._newest = None

    def _show(self) -> None:
        self._timer = None
        try:
            self._newest = newest = event("frame", self._picture())
        except Exception as error:  # a fault of the picture's must not cost those who look more than the picture
            self._log.error("the console's picture could not be made", traceback=place_of(error))
            self.close()
            return
        self.pictures += 1
        for viewer in self.viewers:
            viewer.offer(newest)
        loop = asyncio.get_running_loop()
        self._due_at = max(self._due_at + self._every_s, loop.time())
        self._timer = loop.call_at(self._due_at, self._show)

    def __repr__(self) -> str:
        return f"<Fanout {len(self.viewers)}/{self._most} look, {self.pictures} pictures>"


def _too_many(most: int) -> WeirError:
    return WeirError(
        Outcome.YIELD,
        f"{most} viewers look at this console already; close one of them, or come back later",
        status=503,
        code="too_many_viewers",
        details=Details(retry_hint_ms=FULL_HINT_MS),
    )
