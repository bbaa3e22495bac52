"""One request and its answer as a handler sees them (`Exchange`), and what answers on a listener (`App`).

No framework, because this is the hot path: on one core a bare handler serves three times the requests of a framework
with validation. `guard` makes an `Exchange` when a head is complete, `connection` passes it on when its body is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Protocol

from services.runtime.errors import WeirError, problem
from services.runtime.framing import (
    BODILESS,
    CHUNKED,
    CLOSE,
    LAST_CHUNK,
    STATUS_LINES,
    Headers,
    block,
    chunk,
    content_type_line,
)
from services.runtime.tracing import Trace
from services.runtime.wire import Wire


class Exchange:
    """One request and its answer. Times are the loop's, in seconds.

    `always` is a `block` of headers for any answer, a refusal included. It starts as the service's own; a handler may
    replace it until the answer starts.
    """

    __slots__ = (
        "_callbacks",
        "_chunked",
        "_head",
        "_named",
        "_wire",
        "always",
        "began_at",
        "body",
        "client_id",
        "complete",
        "gone",
        "headers",
        "id",
        "in_trace",
        "keep_alive",
        "log",
        "may_chunk",
        "method",
        "path",
        "query",
        "read_at",
        "refusal",
        "route",
        "started",
        "status",
        "tail",
        "task",
        "trace",
        "unread_s",
        "whole",
    )

    def __init__(
        self,
        wire: Wire,
        method: str,
        path: str,
        headers: list[tuple[bytes, bytes]],
        client_id: bytes | None = None,
        query: bytes = b"",
        in_trace: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query  # undecoded; parsed by `runtime.query`
        self.refusal: WeirError | None = None  # by a head check; sent in place of a handler's answer
        self.route = ""  # the pattern of the path, once a route is found
        self.tail = ""
        self.headers = headers
        self.body = b""
        self.whole = False  # the body is complete
        self.client_id = client_id
        self.in_trace = in_trace  # it has a `traceparent` header, valid or not
        self.trace: Trace | None = None
        self.id = ""
        self.always = b""
        self.log: dict[str, object] = {}
        self.began_at = 0.0  # `read_at`, less `unread_s`
        self.read_at = 0.0
        self.unread_s = 0.0  # in the kernel, before this process read it (`arrival`)
        self.status = 0
        self.started = False
        self.complete = False
        self.gone = False  # the client disconnected before its answer was complete
        self.keep_alive = True
        self.may_chunk = True
        self.task: asyncio.Task[None] | None = None  # of its handler, once that waits
        self._wire = wire
        self._chunked = False
        self._head = b""
        self._named: dict[bytes, bytes] | None = None
        self._callbacks: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = "gone" if self.gone else "complete" if self.complete else "started" if self.started else "open"
        return f"<Exchange {self.id} {self.method} {self.path[:80]}, {state}, status {self.status}>"

    @property
    def scheme(self) -> str:
        """The scheme of the request's URL: `https` where its connection is encrypted by TLS, else `http`."""
        return self._wire.scheme

    @property
    def connection_memo(self) -> object | None:
        """What the service keeps of this client's connection from one request to the next. Freed with it."""
        return self._wire.memo

    @connection_memo.setter
    def connection_memo(self, memo: object) -> None:
        self._wire.memo = memo

    @property
    def named(self) -> Mapping[bytes, bytes]:
        """The headers by their lower-case names; the last one where a header is repeated. Made once."""
        if self._named is None:
            self._named = dict(self.headers)
        return self._named

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, by its lower-case name; the last one where it is repeated."""
        if self._named is None:
            self._named = dict(self.headers)
        return self._named.get(name)

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call this once when the client disconnects; at once if it already has."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def lost(self) -> None:
        """The connection is lost: run the callbacks once. Further output is discarded."""
        self.gone = True
        while self._callbacks:
            self._callbacks.pop(0)()

    # A whole answer

    def reply_now(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Send the whole answer without waiting for a slow reader: for small answers."""
        length = b"" if status in BODILESS else b"content-length: %d\r\n" % len(body)
        head = self._begin(status, content_type, length, headers)
        if not self.gone:
            self._wire.send(head if self.method == "HEAD" or not length else head + body)
            self._end()

    async def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Send the whole answer, after a client that reads slowly has caught up."""
        if self._wire.write_paused:
            await self._wire.until_read()
        self.reply_now(status, body, content_type=content_type, headers=headers)

    def refuse_now(self, error: WeirError) -> None:
        """Send a refusal as the problem body, with its hint, without waiting for a slow reader."""
        status, headers, body = problem(error)
        self.reply_now(status, body, headers=headers)

    async def refuse(self, error: WeirError) -> None:
        """Send a refusal, after a client that reads slowly has caught up."""
        if self._wire.write_paused:
            await self._wire.until_read()
        self.refuse_now(error)

    # An answer in pieces

    async def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Start an answer of unknown length; `write` and `end` follow. The head is sent with the first piece."""
        self._chunked = self.may_chunk
        self._head = self._begin(status, content_type, CHUNKED if self._chunked else b"", headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of a streamed answer, after a client that reads slowly has caught up."""
        if self._wire.write_paused:
            await self._wire.until_read()
        self._must_be_open()
        self._send(self._framed(piece))

    async def end(self, piece: bytes = b"") -> None:
        """End a streamed answer, with its last piece if there is one."""
        if self._wire.write_paused:
            await self._wire.until_read()
        self._must_be_open()
        self._send_last(piece)

    def let_go(self, last: bytes = b"") -> None:
        """End a streamed answer from outside its handler, if it is open. Further output is discarded."""
        if self.started and not self.complete and not self.gone:
            self._send_last(last)
        self.gone = True

    def ended(self) -> None:
        """The handler has ended. An answer without its end is cut, so that the client does not take it for whole."""
        self._wire.ended(self)

    def _framed(self, piece: bytes) -> bytes:
        if not piece or self.method == "HEAD":
            return b""
        return chunk(piece) if self._chunked else piece

    def _must_be_open(self) -> None:
        if not self.started or (self.complete and not self.gone):
            raise RuntimeError("a piece of an answer before its start or after its end")

    # Output

    def _begin(self, status: int, content_type: bytes, framing: bytes, headers: Headers) -> bytes:
        """Make the head, to be sent together with the first piece of the body. Empty for a client that is gone."""
        if self.started:
            if self.gone:
                return b""
            raise RuntimeError("an answer was started twice")
        head = b"%b%b%b%b%b%b%b%b\r\n" % (
            STATUS_LINES[status],
            self._wire.date_line,
            content_type_line(content_type),
            framing,
            b"x-request-id: %b\r\n" % self.id.encode("ascii") if self.id else b"",
            self.always,
            block(headers) if headers else b"",
            b"" if self.keep_alive else CLOSE,
        )
        self.started = True
        self.status = status
        return head

    def _send(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        if data and not self.gone:
            self._wire.send(data)

    def _send_last(self, piece: bytes) -> None:
        self._send(self._framed(piece) + (LAST_CHUNK if self._chunked and self.method != "HEAD" else b""))
        self._end()

    def _end(self) -> None:
        if not self.gone:
            assert not self.complete, f"{self!r} has a second end"
            self.complete = True
            self._wire.answered(self)


Handler = Callable[[Exchange], Awaitable[None]]

HeadCheck = Callable[[Exchange, int], WeirError | None]
"""(exchange, upper bound of the body in bytes) -> a refusal or None, before the body is read. It must not wait."""


class _NextStep:
    """Yields once. Not `types.coroutine`, which mypyc does not know."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def become_task() -> Awaitable[None]:
    """Continue in a task: needed before anything that waits, has a timeout or may be cancelled."""
    return _NextStep()


class App(Protocol):
    """What answers the requests of a listener. `always` is also sent with what is refused before a handler."""

    always: bytes

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one exchange. The first step runs at once and must not wait: see `become_task`."""
