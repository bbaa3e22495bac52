"""Keep-alive connections to one server, opened on demand, with one exchange at a time and no pipelining.

Callbacks only, without a task or future per request: one core sends 6,000 a second on time. Times are from
`perf_counter`, because uvloop's clock counts whole milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from loadtests.load.answer import Answer

CONNECT_TIMEOUT_S = 5.0
MAX_REST_S = 5.0
"""A connection idle for longer is not reused, as in other HTTP clients: the server may be closing it."""
FRAMING = (b"content-length", b"transfer-encoding")


class Exchange:
    """One try: the bytes to send, the answer, and the callback for its end. It ends once."""

    __slots__ = (
        "_on_over",
        "answer",
        "connection",
        "ended_at",
        "failure",
        "first_at",
        "kept",
        "over",
        "request",
        "sent_at",
        "timeout",
    )

    def __init__(self, request: bytes, on_over: Callable[[Exchange], None]) -> None:
        self.request = request
        self.answer = Answer()
        self.connection: Connection | None = None
        self.kept: Connection | None = None
        """The connection of a complete answer, if it was kept open."""
        self.timeout: asyncio.TimerHandle | None = None
        self.sent_at: float | None = None
        self.first_at: float | None = None
        self.ended_at = 0.0
        self.failure = ""
        self.over = False
        self._on_over = on_over

    def end(self, failure: str = "") -> None:
        """End the try: complete if there is no `failure`. Later calls have no effect."""
        if self.over:
            return
        self.over = True
        self.failure = failure
        self.ended_at = perf_counter()
        self.connection = None
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None
        self._on_over(self)

    def give_up(self, failure: str) -> None:
        """End the try and close its connection, which is how the server learns of it."""
        connection = self.connection
        self.end(failure)
        if connection is not None:
            connection.abort()


class Connection(asyncio.Protocol):
    """One socket. httptools calls the `on_*` methods."""

    __slots__ = (
        "_began",
        "_complete",
        "_exchange",
        "_framed",
        "_kept",
        "_parser",
        "_pool",
        "_rests_since",
        "_transport",
    )

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._began = False
        self._complete = False
        self._framed = False
        self._kept = False
        self._rests_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether it may take another exchange."""
        open_still = self._transport is not None and not self._transport.is_closing()
        return open_still and perf_counter() - self._rests_since < self._pool.rest_s

    def rest(self) -> None:
        self._rests_since = perf_counter()

    def send(self, exchange: Exchange) -> None:
        """Send now. The connection must be idle."""
        self._exchange = exchange
        self._began = self._complete = self._framed = False
        exchange.connection = self
        exchange.sent_at = perf_counter()
        if self._transport is not None:
            self._transport.write(exchange.request)

    def abort(self) -> None:
        """Close; an exchange under way is lost."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            self._pool.unasked += 1
            self.abort()  # bytes without a request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("malformed")
            return
        if self._complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if not self._began:
            exchange.end("closed")
        elif exc is None and exchange.answer.status and not self._framed:
            exchange.end()  # neither length nor chunks: the body ends with the connection (RFC 9112 section 6.3)
        else:
            exchange.end("cut")

    def _fail(self, failure: str) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.end(failure)

    def _finish(self) -> None:
        """The answer is complete. The connection is free before the callback, which may send at once."""
        exchange, self._exchange = self._exchange, None
        if self._kept:
            if exchange is not None:
                exchange.kept = self
            self._pool.free(self)
        else:
            self.abort()
        if exchange is not None:
            exchange.end()

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("a second answer to one request")
        self._began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._framed = self._framed or name in FRAMING
        if self._exchange is not None:
            self._exchange.answer.header(name, value)

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.answer.status = self._parser.get_status_code()
            self._kept = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.answer.body(body):
            exchange.first_at = perf_counter()

    def on_message_complete(self) -> None:
        self._complete = True


class Pool:
    """The connections of one tenant, at most `limit`. Further exchanges wait for one, and are late by that time."""

    def __init__(self, host: str, port: int, limit: int, rest_s: float | None = None, *, tls: bool = False) -> None:
        self.rest_s = MAX_REST_S if rest_s is None else rest_s
        self.unasked = 0  # answers without a request
        self._host = host
        self._port = port
        self._tls = tls or None  # None: the system's certificates are not read
        self._limit = limit
        self._idle: dict[Connection, None] = {}  # the one used last is the last
        self._all: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[Exchange] = deque()

    def send(self, exchange: Exchange, over: Connection | None = None) -> None:
        """Send on `over` if it is idle, else on the connection used last, on a new one, or when one becomes free."""
        if over is not None and over in self._idle and over.usable:
            del self._idle[over]
            over.send(exchange)
            return
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                connection.send(exchange)
                return
            connection.abort()
        self._waiting.append(exchange)
        self._open_another()

    def _open_another(self) -> None:
        if len(self._all) + len(self._opening) < self._limit and len(self._opening) < len(self._waiting):
            task = asyncio.get_running_loop().create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError):
            if self._waiting:
                self._waiting.popleft().end("connect")
            return
        self._all.add(connection)
        self.free(connection)

    def free(self, connection: Connection) -> None:
        """Give the connection the next waiting exchange, or mark it as idle."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.over:
                connection.send(exchange)
                return
        connection.rest()
        self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        """Forget a closed connection, and open another if exchanges wait."""
        self._all.discard(connection)
        self._idle.pop(connection, None)
        self._open_another()

    async def close(self) -> None:
        self._waiting.clear()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._all):
            connection.abort()

    def __repr__(self) -> str:
        return f"<Pool {len(self._all)}/{self._limit} connections, {len(self._idle)} idle, {len(self._waiting)} wait>"
