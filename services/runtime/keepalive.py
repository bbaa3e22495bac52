"""A small HTTP/1.1 client for the hot path: a keep-alive pool over asyncio protocols.

Forwarding is what a router exists for, and the client library is what it spends its time in: measured on one core,
httpx forwards 480 requests/s, aiohttp 8,900, this 22,600. It does only what forwarding needs (no redirects, cookies,
proxies or decompression) and is held to aiohttp's behaviour by tests/runtime/test_keepalive.py: fixed, chunked,
streamed, truncated, reset and malformed answers.

A reply is either read whole or taken piece by piece; one that ends early raises `Truncated` and is never mistaken for
a whole one. A connection goes back to the pool only after a complete answer, and closing an unfinished reply aborts
its connection, which is how a worker learns that nobody waits.

A request is sent a second time by the pool only if not one byte of it was written the first time, or if it is GET or
HEAD. RFC 9110 section 9.2.2 forbids a client to repeat other requests by itself: the server may have read the request
before it closed the connection. Whether such a request is tried again is its caller's decision.

Everything that a server sends is bounded: MAX_HEAD_BYTES for each stretch of an answer that is not its body (status
lines, headers, the lines between chunks, trailers), MAX_INTERIM answers before the real one, HIGH_WATER_BYTES of a
body that waits to be read; who reads a body names its own limit. What the parser has passed on may exceed a bound by
the one read of the socket that crossed it (256 KiB with uvloop).
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import httptools

from services.runtime.framing import block
from services.runtime.internaltoken import authorization
from services.runtime.upstream import AnswerTooLarge, ConnectionLost, NoDescriptors, PoolFull, Truncated, UpstreamError
from services.runtime.write_coalescer import WriteCoalescer

HIGH_WATER_BYTES = 262_144
PIECE_BYTES = 64
"""What a piece of a body takes beside its bytes, counted so that a body in tiny chunks is bounded as well."""
MAX_HEAD_BYTES = 65_536
MAX_INTERIM = 16
"""1xx answers to one request."""
IDLE_S = 4.0
"""How long an idle connection is kept. Less than the servers' own limits: uvicorn's is 5 s (vLLM, SGLang and
llama-cpp-python run on it), as are Node's and that of llama.cpp's server. Where both sides close at the same moment, a
request that is just being sent fails."""
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of making a socket that say something about this machine, and nothing about the other one."""
REPEATABLE = (b"GET", b"HEAD")


class _ClosedBeforeReply(ConnectionLost):
    """The connection went away before a byte of the answer: on a reused one, the server had timed it out."""


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time. httptools calls the `on_*` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool) -> None:
        self.loop = loop
        self.pool = pool
        self.parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.uses = 0
        self.busy = False
        self.lingering: asyncio.TimerHandle | None = None
        self.parked_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.header_bytes = 0
        self.head_bytes = 0
        self.interim = 0
        self.written = False
        self.pieces: list[bytes] = []
        self.buffered_bytes = 0
        self.has_head = False
        self.complete = False
        self.keep_alive = False
        self.began = False
        self.error: UpstreamError | None = None
        self.paused = False
        self.answering = False
        self._waiter: asyncio.Future[None] | None = None

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        if not self.busy or self.complete:
            self.abort()  # bytes that nobody asked for: the next answer could not be trusted
            return
        self.head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, AssertionError):
                raise cause from None  # ours, in a callback: no fault of the server's
            self.fail(cause if isinstance(cause, UpstreamError) else UpstreamError(f"the answer is refused: {cause}"))
        except (httptools.HttpParserUpgrade, httptools.HttpParserError) as error:
            self.fail(UpstreamError(f"the answer is not valid HTTP/1.1: {error}"))
        else:
            if self.head_bytes > MAX_HEAD_BYTES and not self.complete:
                self.fail(AnswerTooLarge(f"{MAX_HEAD_BYTES} bytes of the answer without a byte of its body"))

    def eof_received(self) -> None:
        self.keep_alive = False
        self.pool._forget(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool._forget(self)
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
            self.fail(_ClosedBeforeReply("the connection was closed before an answer", sent=self.written))

    def _ends_at_eof(self) -> bool:
        """Neither length nor chunks: the answer ends where the connection does (RFC 9112 section 6.3)."""
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
            self._wake()

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
        self._wake()

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
        else:
            self._wake()

    def _stop_lingering(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self.lingering = None
        self.pool.lingering -= 1
        assert self.pool.lingering >= 0, f"it has lingered already: {self.pool!r}"
        self.pool._park(self)

    # What the outbox writes to

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self.transport is None or self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send; from here on the other side may have read the request."""
        self.written = True
        assert self.transport is not None
        self.transport.write(data)

    # Exchange

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: UpstreamError) -> None:
        """End the exchange with this error."""
        if self.error is None:
            self.error = error
        self.abort()
        self._wake()

    async def wait(self) -> None:
        """Until something changes; raises what went wrong."""
        if self.error is None:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.error is not None:
            raise self.error

    async def exchange(self, request: bytes) -> None:
        """Send a request and wait for the head of its answer."""
        assert not self.busy, f"a connection that is in use was lent again: {self.pool!r}"
        self._clear()
        self.busy = True
        self.uses += 1
        if self.transport is None or self.transport.is_closing():
            raise _ClosedBeforeReply("the connection was already closed", sent=False)
        self.pool.writes.write(self, request)
        while not self.has_head:
            await self.wait()

    def take(self) -> bytes:
        """What has arrived of the body since the last call."""
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.buffered_bytes = 0
        if self.paused and self.transport is not None:
            self.paused = False
            self.transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close now; what was buffered is lost."""
        if self.transport is not None:
            self.transport.abort()


class Reply:
    """The head of an answer, and its body on request. Close it, or use it as a context manager."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: _Connection) -> None:
        self._connection: _Connection | None = connection
        self.status = connection.status
        self.headers = connection.headers

    def header(self, name: bytes) -> bytes | None:
        """A header's value by its lower-case name."""
        return next((value for key, value in self.headers if key == name), None)

    async def next_piece(self) -> bytes | None:
        """What has arrived, joined; None after the end. Raises Truncated if the answer was cut."""
        connection = self._connection
        if connection is None:
            return None
        while not connection.pieces:
            if connection.complete:
                self.close()
                return None
            await connection.wait()
        return connection.take()

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body. Raises Truncated, or AnswerTooLarge when it exceeds `limit_bytes`."""
        connection = self._connection
        if connection is None:
            return b""
        body = bytearray()  # an answer in a thousand pieces is not copied a thousand times
        while not connection.complete:
            if connection.pieces:
                body += connection.take()
            if len(body) > limit_bytes:
                self.close()
                raise AnswerTooLarge(f"the answer exceeds {limit_bytes} bytes")
            if not connection.complete:
                await connection.wait()
        body += connection.take()
        self.close()
        if len(body) > limit_bytes:
            raise AnswerTooLarge(f"the answer exceeds {limit_bytes} bytes")
        return bytes(body)

    def close(self) -> None:
        """Give the connection back if its answer is whole, abort it otherwise."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pool._release(connection)

    def discard(self) -> None:
        """Close it together with its connection, whose next answer could not be trusted."""
        if self._connection is not None:
            self._connection.keep_alive = False
        self.close()

    def linger(self, seconds: float = 1.0) -> None:
        """Close a reply whose meaning is complete though its last bytes may still be on the way.

        It is not in use any more: who takes its place needs a connection now. It is reused if they come in `seconds`;
        if more than an end comes, or nothing, or as many linger as may be idle, it is aborted.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pool._let_linger(connection, seconds)

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Pool:
    """Keep-alive connections to one server. `max_connections` bounds those in use; asking for more raises.

    At most `max_idle` are kept, each for `idle_s` seconds. `token` is shown with every request: see `internaltoken`.
    """

    def __init__(
        self,
        url: str,
        *,
        max_connections: int,
        connect_timeout_s: float = 1.0,
        max_idle: int = 64,
        idle_s: float = IDLE_S,
        token: bytes = b"",
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/").encode("ascii")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host_line = block([(b"host", parts.netloc.rpartition("@")[2].encode("ascii")), *authorization(token)])
        self._max_connections = max_connections
        self._connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: list[_Connection] = []  # the longest idle first
        self._sweep: asyncio.TimerHandle | None = None
        self._working: dict[_Connection, None] = {}  # in the order in which they were lent
        self.in_use = self.lingering = 0
        self.writes = WriteCoalescer()

    async def request(
        self, method: bytes, target: bytes, *, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> Reply:
        """Send a request and return when the head of the answer is here.

        Raises UpstreamError; `sent` tells whether the other side may have seen the request. No time limit of its own
        but for connecting: the caller's deadline governs. A reused connection that closed before a byte of the request
        was written is replaced once; for GET and HEAD also one that closed before a byte of an answer. Any other
        request that was written is never sent again from here (RFC 9110 section 9.2.2).
        """
        if self.in_use >= self._max_connections:
            raise PoolFull(f"{self._max_connections} connections to {self.url} are in use")
        lines = [b"%s %s%s HTTP/1.1\r\n" % (method, self.prefix, target), self._host_line]
        lines += [b"%s: %s\r\n" % header for header in headers]
        if body or method not in (b"GET", b"HEAD"):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines += (b"\r\n", body)
        request = b"".join(lines)
        self.in_use += 1
        connection: _Connection | None = None
        try:
            connection = (self._reusable() if self._idle else None) or await self._connect()
            self._working[connection] = None
            try:
                await connection.exchange(request)
            except _ClosedBeforeReply as closed:
                if connection.uses == 1 or (closed.sent and method not in REPEATABLE):
                    raise
                self._working.pop(connection, None)
                try:
                    connection = await self._connect()
                except PoolFull:
                    raise
                except UpstreamError:
                    raise closed from None  # it was not idle: it has died, and perhaps of this request
                self._working[connection] = None
                await connection.exchange(request)
        except BaseException:
            self.in_use -= 1
            if connection is not None:
                self._working.pop(connection, None)
                connection.busy = False
                connection.abort()
            raise
        return Reply(connection)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self), self.host, self.port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamError(f"no connection to {self.url} in {self._connect_timeout_s:g} s", sent=False) from None
        except OSError as error:
            why = f"no connection to {self.url}: {error.strerror or error}"
            raise NoDescriptors(why) if _is_ours(error) else UpstreamError(why, sent=False) from None
        return connection

    def _reusable(self) -> _Connection | None:
        """The connection that was used last, unless it has been idle for too long; then all others have, too."""
        connection = self._idle.pop()
        if connection.loop.time() - connection.parked_at < self._idle_s:
            return connection
        connection.abort()
        self.close()
        return None

    def _close_stale(self) -> None:
        """Close what has been idle for too long; look again when the next one has."""
        self._sweep = None
        while self._idle:
            oldest = self._idle[0]
            closes_at = oldest.parked_at + self._idle_s
            if closes_at > oldest.loop.time():
                self._sweep = oldest.loop.call_at(closes_at, self._close_stale)
                return
            del self._idle[0]
            oldest.abort()

    def _release(self, connection: _Connection) -> None:
        self.in_use -= 1
        assert self.in_use >= 0, f"more was given back than taken: {self!r}"
        self._park(connection)

    def _let_linger(self, connection: _Connection, seconds: float) -> None:
        if connection.complete or connection.pieces or connection.error or self.lingering >= self._max_idle:
            self._release(connection)
            return
        self.in_use -= 1
        self.lingering += 1
        connection.lingering = connection.loop.call_later(seconds, connection.abort)

    def _park(self, connection: _Connection) -> None:
        assert connection.busy, f"a connection was given back twice: {self!r}"
        self._working.pop(connection, None)
        connection.busy = False
        reusable = connection.complete and connection.keep_alive and connection.error is None
        if reusable and len(self._idle) < self._max_idle and not connection.pieces:
            connection.parked_at = connection.loop.time()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = connection.loop.call_at(connection.parked_at + self._idle_s, self._close_stale)
        else:
            connection.abort()

    def _forget(self, connection: _Connection) -> None:
        if not connection.busy and connection in self._idle:
            self._idle.remove(connection)

    def fail_unanswered(self, why: str) -> None:
        """Fail every exchange of which no byte of a body has come, and forget the idle connections."""
        for connection in [connection for connection in self._working if not connection.answering]:
            connection.fail(UpstreamError(why))
        self.close()

    def close(self) -> None:
        """Close the idle connections; those in use close with their replies."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.pop().abort()

    def retire(self) -> None:
        """Close, and keep none from now on: the connections in use end with their replies."""
        self._max_idle = 0
        self.close()

    def __repr__(self) -> str:
        return f"<Pool {self.url}: {self.in_use} in use, {len(self._idle)} idle>"


def _is_ours(error: OSError) -> bool:
    """Whether this machine is the reason. Looking up a name needs descriptors, and does not say if it had none."""
    if not isinstance(error, socket.gaierror):
        return error.errno in OURS
    try:
        socket.socket().close()
    except OSError as lacking:
        return lacking.errno in OURS
    return False
