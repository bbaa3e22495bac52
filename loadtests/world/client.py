"""Clients of the world: HTTP/1.1 by callbacks, keep-alive, with manners of their own. Each request ends once.

A request is one `Try`. Its nonce and its id are its number; a retry is a new `Try` with a new nonce. So whatever an
answer, a log line or a worker speaks of is known to the last byte.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httptools

from loadtests.judging.nonces import nonce, prompt

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop

MAX_TOKENS = 64
"""More than any right answer has, at the deepest level of degradation too: that leaves a third."""
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions", "ask": "/ask"}
IDLE_S = 60.0
"""A connection that has rested for longer is left; the router keeps one for 75 s."""
HINT = b"retry-after-ms"
SHOULD_RETRY = b"x-should-retry"


@dataclass(slots=True, frozen=True)
class Ask:
    """What a client wants. `kind` is a key of PATHS. `leaves_after_s`: it hangs up then, whatever has come."""

    tenant: str
    kind: str
    stream: bool
    deadline_s: float
    manner: str
    leaves_after_s: float | None = None
    reads_slowly: bool = False


class Try:
    """One request and what came of it. Times are the client's loop's."""

    __slots__ = (
        "ask", "body", "complete", "connection", "ended_at", "failure", "headers", "id", "left", "nonce", "number",
        "of_tail", "retries_left", "sent_at", "status", "timer",
    )  # fmt: skip

    def __init__(self, number: int, ask: Ask, retries_left: int) -> None:
        self.number = number
        self.ask = ask
        self.id = f"t{number}"
        self.nonce = nonce(number)
        self.retries_left = retries_left
        self.sent_at = 0.0
        self.ended_at: float | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.complete = False
        self.failure = ""
        self.left = False
        self.of_tail = False
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None

    def request(self, host: str) -> bytes:
        """Its bytes on the wire."""
        ask = self.ask
        question = prompt(self.nonce)
        body: dict[str, Any] = {"max_tokens": MAX_TOKENS, "stream": ask.stream}
        if ask.kind == "chat":
            body["messages"] = [{"role": "user", "content": question}]
        else:
            body["query" if ask.kind == "ask" else "prompt"] = question
        data = json.dumps(body).encode()
        return (
            f"POST {PATHS[ask.kind]} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\nx-request-id: {self.id}\r\nx-tenant: {ask.tenant}\r\n"
            f"x-weir-deadline-ms: {ask.deadline_s * 1000:g}\r\n\r\n"
        ).encode() + data

    @property
    def hint_ms(self) -> float | None:
        """When to come back, in milliseconds, if the answer said so."""
        value = self.headers.get(HINT)
        return float(value) if value is not None else None

    @property
    def invited(self) -> bool:
        """Whether the answer asks for a retry."""
        return self.headers.get(SHOULD_RETRY) == b"true"

    def __repr__(self) -> str:
        return f"<Try {self.id} {self.ask.tenant} {self.ask.kind}{' stream' if self.ask.stream else ''} {self.status}>"


class Connection(asyncio.Protocol):
    """One connection of a client machine, for one try at a time. httptools calls the `on_*` methods."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._loop = machine.loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._try: Try | None = None
        self._keep = False
        self.idle_since = machine.loop.time()

    @property
    def usable(self) -> bool:
        """It is open, and not for too long at rest."""
        open = self._transport is not None and not self._transport.is_closing()
        return open and self._loop.time() - self.idle_since < IDLE_S

    def send(self, attempt: Try) -> None:
        """Send a request; the connection must be idle."""
        assert self._try is None, "a connection carries one request at a time"
        self._try = attempt
        attempt.connection = self
        self._transport.write(attempt.request(self._machine.host_header))
        if attempt.ask.reads_slowly:
            self._transport.pause_reading()
            self._loop.call_later(attempt.ask.deadline_s / 4, self._read_on)

    def abort(self) -> None:
        """Hang up."""
        self._try = None
        if self._transport is not None:
            self._transport.abort()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._try is None:
            self._machine.unasked(data)
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"malformed: {error}")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._machine.forget(self)
        self._end("reset" if exc is not None else "closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._try is not None:
            self._try.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._try is not None:
            self._try.status = self._parser.get_status_code()
        self._keep = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        if self._try is not None:
            self._try.body.append(data)

    def on_message_complete(self) -> None:
        attempt = self._try
        if attempt is None or attempt.status < 200:
            return
        attempt.complete = True
        self._end("")
        if self._keep:
            self.idle_since = self._loop.time()
            self._machine.rest(self)
        else:
            self._transport.close()

    def _end(self, failure: str) -> None:
        attempt, self._try = self._try, None
        if attempt is not None:
            self._machine.ended(attempt, failure)


class Machine:
    """A client machine: its connections to one router, and its tries that have not ended.

    `on_end` is told of each end, once. `limit` bounds its connections: more wait for one to be free.
    """

    def __init__(
        self, loop: SimLoop, router: tuple[str, int], on_end: Callable[[Try], None], *, limit: int = 256
    ) -> None:
        self.loop = loop
        self.host_header = f"{router[0]}:{router[1]}"
        self.open: dict[int, Try] = {}
        self.garbage: list[bytes] = []
        """What came on a connection that had asked nothing."""
        self._router = router
        self._on_end = on_end
        self._limit = limit
        self._idle: list[Connection] = []
        self._connections: dict[Connection, None] = {}
        self._connecting = 0
        self._waiting: deque[Try] = deque()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def send(self, attempt: Try) -> None:
        """Send a request now, or as soon as there is a connection. Called in this machine's loop."""
        attempt.sent_at = self.loop.time()
        self.open[attempt.number] = attempt
        if attempt.ask.leaves_after_s is not None:
            attempt.timer = self.loop.call_later(attempt.ask.leaves_after_s, self._leave, attempt)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.send(attempt)
                return
            connection.abort()
        self._waiting.append(attempt)
        self._connect_soon()

    def _connect_soon(self) -> None:
        """One more connection, if more wait for one than are on their way, and the limit allows it."""
        if len(self._waiting) <= self._connecting or len(self._connections) + self._connecting >= self._limit:
            return
        self._connecting += 1
        task = self.loop.create_task(self._connect())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _connect(self) -> None:
        try:
            _, made = await self.loop.create_connection(lambda: Connection(self), *self._router)
        except OSError as error:
            self._connecting -= 1
            if self._waiting:
                self.ended(self._waiting.popleft(), f"connect: {type(error).__name__}")
            return
        self._connecting -= 1
        connection = cast(Connection, made)
        self._connections[connection] = None
        self.rest(connection)

    def rest(self, connection: Connection) -> None:
        """That connection is free: for whoever waits, or for later."""
        connection.idle_since = self.loop.time()
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """That connection is gone."""
        self._connections.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)
        self._connect_soon()

    def unasked(self, data: bytes) -> None:
        """Bytes came that nobody had asked for."""
        self.garbage.append(data)

    def ended(self, attempt: Try, failure: str) -> None:
        """A try is over."""
        assert attempt.ended_at is None, f"{attempt!r} ends twice"
        attempt.ended_at = self.loop.time()
        attempt.failure = failure
        attempt.connection = None
        if attempt.timer is not None:
            attempt.timer.cancel()
            attempt.timer = None
        del self.open[attempt.number]
        self._on_end(attempt)

    def _leave(self, attempt: Try) -> None:
        attempt.timer = None
        attempt.left = True
        connection = attempt.connection
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        if connection is not None:
            connection.abort()
        self.ended(attempt, "left")

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
