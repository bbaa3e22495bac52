"""One connection to another service: it sends a request and parses the answer, one exchange at a time.

Everything that the server sends is bounded: MAX_HEAD_BYTES for each stretch of an answer that is not its body (status
lines, headers, the lines between chunks, trailers), MAX_INTERIM answers before the final one, HIGH_WATER_BYTES of a
body that waits to be read. A bound may be exceeded by the one read of the socket that crosses it (256 KiB with uvloop).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from services.runtime.upstream import AnswerTooLarge, ConnectionLost, Truncated, UpstreamError

if TYPE_CHECKING:
    from services.runtime.keepalive import Pool

HIGH_WATER_BYTES = 262_144
PIECE_BYTES = 64
"""What a piece of a body takes beside its bytes, counted so that a body in tiny chunks is bounded as well."""
MAX_HEAD_BYTES = 65_536
MAX_INTERIM = 16
"""1xx answers to one request."""


class ClosedBeforeReply(ConnectionLost):
    """The connection was closed before a byte of the answer: a reused one had reached the server's idle timeout."""


class UpstreamConnection:
    """A connection of a `Pool`. httptools calls the `on_*` methods.

    Like `ClientStream` no subclass of `asyncio.Protocol`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pool = pool
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.uses = 0
        self.busy = False
        self.lingering: asyncio.TimerHandle | None = None
        self.parked_at = 0.0
        self.pieces: list[bytes] = []
        self.buffered_bytes = 0
        self.paused = False
        self.error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._clear()

    def _clear(self) -> None:
        """Forget the last answer. The rest is as it was made, or `Pool.park` has not kept the connection."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.header_bytes = 0
        self.head_bytes = 0
        self.interim = 0
        self.written = False
        self.has_head = False
        self.complete = False
        self.keep_alive = False
        self.began = False
        self.answering = False

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        if not self.busy or self.complete:
            self.abort()  # bytes without a request: the next answer could not be trusted
            return
        self.head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, AssertionError):
                raise cause from None  # an assertion of this code, not a fault of the server
            self.fail(cause if isinstance(cause, UpstreamError) else UpstreamError(f"the answer is refused: {cause}"))
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self.fail(UpstreamError(f"the answer is not valid HTTP/1.1: {error}"))
        else:
            if self.head_bytes > MAX_HEAD_BYTES and not self.complete:
                self.fail(AnswerTooLarge(f"{MAX_HEAD_BYTES} bytes of the answer without a byte of its body"))
            self._wake()  # once, whatever the callbacks below have noted

    def pause_writing(self) -> None:
        """A request is written in one piece and bounded, so nothing waits for the server to read it."""

    def resume_writing(self) -> None:
        """As `pause_writing`."""

    def eof_received(self) -> None:
        self.keep_alive = False
        self.pool.forget(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.forget(self)
        self.keep_alive = False
        if self.lingering is not None:
            self._stop_lingering(self.lingering)
            return
        if not self.busy or self.complete:
            return
        if self.has_head and exc is None and self._ends_at_eof():
            self.complete = True
            self._wake()
        elif self.began:
            self.fail(Truncated("the answer was cut before its end"))
        else:
            self.fail(ClosedBeforeReply("the connection was closed before an answer", sent=self.written))

    def _ends_at_eof(self) -> bool:
        """Without a length and without chunks an answer ends with its connection (RFC 9112 section 6.3)."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    # Parser

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep_alive = False
            raise ValueError("a second answer to one request")
        self.began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.header_bytes += len(name) + len(value)
        if self.header_bytes > MAX_HEAD_BYTES:
            raise AnswerTooLarge(f"the answer's headers exceed {MAX_HEAD_BYTES} bytes")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()
        self.keep_alive = self.parser.should_keep_alive()
        if self.status >= 200:
            self.has_head = True
            self.head_bytes = 0

    def on_body(self, body: bytes) -> None:
        if self.lingering is not None:
            raise ValueError("bytes after what should have been the end")
        self.answering = True
        self.head_bytes = 0
        self.pieces.append(body)
        self.buffered_bytes += len(body) + PIECE_BYTES
        if self.buffered_bytes > HIGH_WATER_BYTES and not self.paused and self.transport is not None:
            self.paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and 103 Early Hints precede the answer
            self.headers = []
            self.interim += 1
            if self.interim > MAX_INTERIM:
                raise AnswerTooLarge(f"more than {MAX_INTERIM} answers before the real one")
            return
        self.complete = True
        if self.lingering is not None:
            self._stop_lingering(self.lingering)

    def _stop_lingering(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self.lingering = None
        self.pool.lingering -= 1
        assert self.pool.lingering >= 0, f"it has lingered already: {self.pool!r}"
        self.pool.park(self)

    # The sink of a `WriteCoalescer`

    def is_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send. From here on the server may have read the request."""
        self.written = True
        assert self.transport is not None
        self.transport.write(data)

    # Exchange

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: UpstreamError) -> None:
        """End the exchange with this error, and the connection with it."""
        if self.error is None:
            self.error = error
        self.abort()
        self._wake()

    async def wait(self) -> None:
        """Return when something changes. Raises UpstreamError if the exchange has failed."""
        if self.error is None:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.error is not None:
            raise self.error

    async def exchange(self, request: bytes) -> None:
        """Send a request and wait for the head of its answer. Raises UpstreamError."""
        assert not self.busy, f"a connection that is in use was lent again: {self.pool!r}"
        self._clear()
        self.busy = True
        self.uses += 1
        if self.transport is None or self.transport.is_closing():
            raise ClosedBeforeReply("the connection was already closed", sent=False)
        self.pool.writes.write(self, request)
        while not self.has_head:
            await self.wait()

    def take(self) -> bytes:
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.buffered_bytes = 0
        if self.paused and self.transport is not None:
            self.paused = False
            self.transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close at once; buffered data is lost."""
        if self.transport is not None:
            self.transport.abort()
