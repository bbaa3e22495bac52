"""The writing half of a client's connection: back-pressure, the stall timer, and its place in the listener's budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.utils import is_ssl

from services.runtime.http import become_task
from services.runtime.shared import Shared


class ClientStream:
    """Writes to one client; the base of `Connection`, which reads from it. No subclass of `asyncio.Protocol`: mypyc
    compiles it only as a class of its own.

    The stall timer runs while the client reads more slowly than answers are written, and from the moment on which the
    connection is to close: `transport.close()` waits for the client to read what was written, possibly for ever.
    """

    __slots__ = (
        "_closing",
        "_loop",
        "_registered",
        "_shared",
        "_source",
        "_stall_timer",
        "_transport",
        "_writable",
        "_writes",
        "memo",
        "write_paused",
    )

    _transport: asyncio.Transport

    def __init__(self, shared: Shared) -> None:
        self.write_paused = False
        self.memo: object | None = None
        self._shared = shared
        self._writes = shared.writes
        self._loop = asyncio.get_running_loop()
        self._source: bytes | None = None
        self._registered = False  # it holds a place in the listener's budget of connections
        self._closing = False  # nothing more is answered
        self._writable: asyncio.Event | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def _run_step(self, step: Callable[[], None]) -> None:
        """Run a callback of the loop. A failed one aborts the connection, which nothing else would look at again."""
        try:
            step()
        except BaseException:
            self._transport.abort()
            raise

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._shared.places.release(self._source, 1)

    # The `Wire` of an exchange

    @property
    def scheme(self) -> str:
        return "https" if is_ssl(self._transport) else "http"

    @property
    def date_line(self) -> bytes:
        return self._shared.date_line

    def send(self, data: bytes) -> None:
        self._writes.write(self._transport, data)

    async def until_read(self) -> None:
        await become_task()
        while self.write_paused and self._writable is not None:
            await self._writable.wait()

    # Back-pressure, reported by the transport

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable = asyncio.Event()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """The client has read. A connection that is closing gets its stall time again, for what is left."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._closing:
            self._flush_last()

    def _flush_last(self) -> None:
        """Write what is pending. The client must read it within `write_stall_s`."""
        self._writes.flush()
        self._start_stall_timer()

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._shared.limits.write_stall_s, self._transport.abort)
