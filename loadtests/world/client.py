"""HTTP/1.1 clients of the world: keep-alive, callbacks only, with retry policies.

Each request is one `Try` and ends once. Its number is its id and nonce; a retry is a new `Try`. So every byte of an
answer, log line or worker can be attributed to one request. A retry that repeats a try has that try's nonce, so only a
try that no worker received may be repeated.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httptools

from loadtests.judging.nonces import nonce, prompt
from loadtests.world.machine import Asked, Machine, Wire

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop

MAX_TOKENS = 64
"""More tokens than any right answer has, even at the deepest degradation level, which leaves a third."""
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions", "ask": "/ask"}
HINT = b"retry-after-ms"
SHOULD_RETRY = b"x-should-retry"
REASON = b"x-weir-reason"
EARLY = b"early_retry"


@dataclass(slots=True, frozen=True)
class Ask:
    """A request to send. `kind` is a key of PATHS. The client disconnects after `leaves_after_s`.

    `repeats`: whether its retries have the same bytes and connection.
    """

    tenant: str
    kind: str
    stream: bool
    deadline_s: float
    manner: str
    leaves_after_s: float | None = None
    reads_slowly: bool = False
    repeats: bool = False
    open_ended: bool = False
    """Whether it sets no limit of the answer."""


class Try(Asked):
    __slots__ = (
        "ask", "body", "complete", "connection", "follows", "headers", "id", "left", "nonce", "number", "of_tail",
        "over", "retries_left", "status",
    )  # fmt: skip

    def __init__(
        self, number: int, ask: Ask, retries_left: int, follows: Try | None = None, *, repeats: bool = False
    ) -> None:
        """`follows`: the try whose connection it takes; with `repeats` it has its nonce, too."""
        super().__init__()
        self.number = number
        self.ask = ask
        self.id = f"t{number}"
        self.nonce: str = follows.nonce if follows is not None and repeats else nonce(number)
        self.follows = follows
        self.over: Connection | None = None  # the connection that carried it; kept after its end
        self.retries_left = retries_left
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.complete = False
        self.left = False
        self.of_tail = False
        self.connection: Connection | None = None

    def request(self, host: str) -> bytes:
        ask = self.ask
        question = prompt(self.nonce)
        body: dict[str, Any] = {"stream": ask.stream}
        if not ask.open_ended:
            body["max_tokens"] = MAX_TOKENS
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
        value = self.headers.get(HINT)
        return float(value) if value is not None else None

    @property
    def early(self) -> bool:
        """Whether it was refused as an early retry."""
        return self.headers.get(REASON) == EARLY

    @property
    def invited(self) -> bool:
        return self.headers.get(SHOULD_RETRY) == b"true"

    def __repr__(self) -> str:
        return f"<Try {self.id} {self.ask.tenant} {self.ask.kind}{' stream' if self.ask.stream else ''} {self.status}>"


class Connection(Wire):
    """One connection of a client machine, with one try at a time. httptools calls the `on_*` methods."""

    def __init__(self, machine: Client) -> None:
        super().__init__(machine.loop)
        self._machine = machine
        self._parser = httptools.HttpResponseParser(self)
        self._try: Try | None = None
        self._keep = False
        self.sent: list[Try] = []
        """All that it carried, in order."""

    @property
    def machine(self) -> Client:
        return self._machine

    def send(self, attempt: Try) -> None:
        """Send a request. The connection must be idle."""
        assert self._try is None, "a connection carries one request at a time"
        self._try = attempt
        attempt.connection = attempt.over = self
        self.sent.append(attempt)
        self.transport.write(attempt.request(self._machine.host_header))
        if attempt.ask.reads_slowly:
            self.transport.pause_reading()
            self.loop.call_later(attempt.ask.deadline_s / 4, self._read_on)

    def abort(self) -> None:
        self._try = None
        super().abort()

    def _read_on(self) -> None:
        if self.open:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._try is None:
            self._machine.garbage.append(repr(data))
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"malformed: {error}")
            self.transport.abort()

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
            self._machine.rest(self)
        else:
            self.transport.close()

    def _end(self, end: str) -> None:
        attempt, self._try = self._try, None
        if attempt is not None:
            self._machine.ended(attempt, end)


class Client(Machine[Try, Connection]):
    """The router's client machine, with at most `limit` connections; further requests wait."""

    def __init__(
        self, loop: SimLoop, router: tuple[str, int], on_end: Callable[[Try], None], *, limit: int = 256
    ) -> None:
        super().__init__(loop, router, on_end)
        self.host_header = f"{router[0]}:{router[1]}"
        self._limit = limit
        self._connecting = 0
        self._waiting: deque[Try] = deque()

    def send(self, attempt: Try) -> None:
        """Send a request now or when a connection is free. Call it in this machine's loop.

        A try that follows another one is sent over that one's connection, if it is idle.
        """
        attempt.sent_at = self.loop.time()
        if attempt.ask.leaves_after_s is not None:
            attempt.timer = self.loop.call_later(attempt.ask.leaves_after_s, self._leave, attempt)
        own = None if attempt.follows is None else self.idle_again(attempt.follows.over)
        if (connection := own or self.idle()) is not None:
            connection.send(attempt)
            return
        self._waiting.append(attempt)
        self._connect_soon()

    def _connect_soon(self) -> None:
        """Open another connection if more requests wait than connections are being opened, within the limit."""
        if len(self._waiting) > self._connecting and len(self._connections) + self._connecting < self._limit:
            self._connecting += 1
            self.start(self._connect())

    async def _connect(self) -> None:
        try:
            _, connection = await self.loop.create_connection(lambda: Connection(self), *self._server)
        except OSError as error:
            self._connecting -= 1
            if self._waiting:
                self.ended(self._waiting.popleft(), f"connect: {type(error).__name__}")
            return
        self._connecting -= 1
        self._connections[connection] = None
        self.rest(connection)

    def rest(self, connection: Connection) -> None:
        """Give the free connection to the longest waiting request, or keep it idle."""
        super().rest(connection)
        if self._waiting:
            self._idle.pop().send(self._waiting.popleft())

    def forget(self, connection: Connection) -> None:
        super().forget(connection)
        self._connect_soon()

    def ended(self, asked: Try, end: str) -> None:
        asked.connection = None
        super().ended(asked, end)

    def _leave(self, attempt: Try) -> None:
        attempt.timer = None
        attempt.left = True
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        if attempt.connection is not None:
            attempt.connection.abort()
        self.ended(attempt, "left")
