"""A viewer without a socket: a wire whose client reads when the test says so."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from contextlib import suppress

from services.console.fanout import Fanout
from services.runtime.errors import WeirError
from services.runtime.http import Exchange
from services.runtime.log import Log


class FakeWire:
    """What an exchange writes to. While `write_paused`, its client does not read."""

    date_line = b""
    scheme = "http"

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.memo: object | None = None
        self.write_paused = False
        self.complete = False
        self._read = asyncio.Event()

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def until_read(self) -> None:
        while self.write_paused:
            await self._read.wait()

    def reads_again(self) -> None:
        self.write_paused = False
        self._read.set()

    def answered(self, exchange: Exchange) -> None:
        self.complete = True

    def ended(self, exchange: Exchange) -> None:
        pass


class Watcher:
    """Somebody who looks, from now on."""

    def __init__(self, fanout: Fanout) -> None:
        self.wire = FakeWire()
        self.exchange = Exchange(self.wire, "GET", "/console/events", [])
        self.refusal: WeirError | None = None
        self.task = asyncio.get_running_loop().create_task(self._watch(fanout))

    async def _watch(self, fanout: Fanout) -> None:
        try:
            await fanout.watch(self.exchange)
        except WeirError as refusal:
            self.refusal = refusal

    @property
    def pictures(self) -> list[bytes]:
        """The data of the frames that it was sent, without the chunk's frame around them."""
        frames = [data.partition(b"event: frame\ndata: ")[2] for data in self.wire.sent if b"event: frame" in data]
        return [frame.partition(b"\n")[0] for frame in frames]

    async def leave(self) -> None:
        self.exchange.lost()
        with suppress(asyncio.CancelledError):
            await self.task


class Gallery:
    """A fanout of numbered pictures."""

    def __init__(self, picture: Callable[[int], bytes] = lambda number: b"%d" % number, most: int = 64) -> None:
        self.log_stream = io.BytesIO()
        self.made = 0
        self._picture = picture
        self.fanout = Fanout(lambda: b"{}", self.next, Log("test", stream=self.log_stream), max_viewers=most)

    def next(self) -> bytes:
        self.made += 1
        return self._picture(self.made)

    def watcher(self) -> Watcher:
        return Watcher(self.fanout)
