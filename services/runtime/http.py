"""A service's HTTP face: routes in a table, one error boundary, one log line per request.

No framework, because it is the hot path: measured on one core, a bare handler carries three times what a framework with
validation does, and one layer of middleware costs more than all of this file. A handler gets an `Exchange`, made by
`guard` when a request's head is here and handed over by `connection` when its body is.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import traceback
import types
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import msgspec

from services.core.outcome import Outcome
from services.runtime.drain import Drain
from services.runtime.errors import BadInput, Refused, WeirError, problem
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
from services.runtime.log import Log
from services.runtime.wire import Wire

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")
HEALTH_ROUTES = ("/health", "/health/ready")


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can work, and what it lacks. `detail` is the body of /health/ready."""

    ok: bool
    detail: dict[str, object] = field(default_factory=dict)


class Exchange:
    """One request and its answer.

    `always` is a `block` of headers that stand on the answer whatever it will be, a refusal too. It begins as the
    service's own, and a handler may put another in its place until the answer starts. Times are the loop's.
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
        "complete",
        "given_id",
        "gone",
        "headers",
        "id",
        "keep_alive",
        "log",
        "may_chunk",
        "method",
        "path",
        "query",
        "started",
        "status",
        "tail",
        "task",
        "whole",
    )

    def __init__(
        self, wire: Wire, method: str, path: str, headers: list[tuple[bytes, bytes]], given_id: bytes | None = None
    ) -> None:
        self.method = method
        self.path = path
        self.query = b""  # what stands behind the `?`, as it came: see `runtime.query`
        self.tail = ""
        self.headers = headers
        self.body = b""
        self.whole = False  # the request is here with all of its body
        self.given_id = given_id
        self.id = ""
        self.always = b""
        self.log: dict[str, object] = {}
        self.began_at = 0.0
        self.status = 0
        self.started = False
        self.complete = False
        self.gone = False  # the client left before its answer was complete
        self.keep_alive = True
        self.may_chunk = True
        self.task: asyncio.Task[None] | None = None  # its handler's, once that waits
        self._wire = wire
        self._chunked = False
        self._head = b""
        self._named: dict[bytes, bytes] | None = None
        self._callbacks: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = "gone" if self.gone else "complete" if self.complete else "started" if self.started else "open"
        return f"<Exchange {self.id} {self.method} {self.path[:80]}, {state}, status {self.status}>"

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, by its lower-case name; the last one where it is repeated."""
        if self._named is None:
            self._named = dict(self.headers)
        return self._named.get(name)

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call this once when the client leaves; at once if it has already left."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def lost(self) -> None:
        """The connection is lost: tell everyone who asked, once. Whatever is sent from now on goes nowhere."""
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
        """Send the whole answer, and do not ask whether the client keeps up: for answers that are small."""
        length = b"" if status in BODILESS else b"content-length: %d\r\n" % len(body)
        self._begin(status, content_type, length, headers)
        self._send(b"" if self.method == "HEAD" or not length else body)
        self._end()

    async def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Send the whole answer."""
        if self._wire.behind:
            await self._wire.until_read()
        self.reply_now(status, body, content_type=content_type, headers=headers)

    def refuse_now(self, error: WeirError) -> None:
        """Send a refusal as the problem body, with its hint."""
        status, headers, body = problem(error)
        self.reply_now(status, body, headers=headers)

    async def refuse(self, error: WeirError) -> None:
        """The same, for whom a client that does not read is worth waiting for."""
        if self._wire.behind:
            await self._wire.until_read()
        self.refuse_now(error)

    # An answer in pieces

    async def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Begin an answer whose length is not known; `write` and `end` follow. Its head leaves with the first piece."""
        self._chunked = self.may_chunk
        self._begin(status, content_type, CHUNKED if self._chunked else b"", headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of a streamed answer; waits while the client reads slower than we write."""
        if self._wire.behind:
            await self._wire.until_read()
        self._must_be_open()
        self._send(self._framed(piece))

    async def end(self, piece: bytes = b"") -> None:
        """End a streamed answer, with its last piece if there is one."""
        if self._wire.behind:
            await self._wire.until_read()
        self._must_be_open()
        self._send(self._framed(piece) + (LAST_CHUNK if self._chunked and self.method != "HEAD" else b""))
        self._end()

    def ended(self) -> None:
        """The handler has ended. An answer without its end is cut, so that nobody takes it for whole."""
        self._wire.ended(self)

    def _framed(self, piece: bytes) -> bytes:
        if not piece or self.method == "HEAD":
            return b""
        return chunk(piece) if self._chunked else piece

    def _must_be_open(self) -> None:
        if not self.started or self.complete:
            raise RuntimeError("a piece of an answer before its start or after its end")

    # The way out

    def _begin(self, status: int, content_type: bytes, framing: bytes, headers: Headers) -> None:
        """Make the head. It waits for the first piece of the body: both leave in one write."""
        if self.started:
            raise RuntimeError("an answer was started twice")
        self._head = b"%b%b%b%b%b%b%b%b\r\n" % (
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

    def _send(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        if data and not self.gone:
            self._wire.send(data)

    def _end(self) -> None:
        if not self.gone:
            self.complete = True
            self._wire.answered(self)


Handler = Callable[[Exchange], Awaitable[None]]


@types.coroutine
def become_task() -> Generator[None, None, None]:
    """Go on in a task of one's own: before anything that waits, has a timeout or may be cancelled."""
    yield


class App(Protocol):
    """What answers the requests of a listener. `always` stands on what is refused before a handler, too."""

    always: bytes

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one exchange. Its first step runs at once, and must not wait: see `become_task`."""


class Service:
    """What one service answers.

    `routes` maps (METHOD, path) to a handler; a path that ends in `/*` matches one more segment (`exchange.tail`), and
    one that ends in `/**` whatever follows, slashes and all.
    `headers` stand on every answer; `always`, the block made of them, may be replaced while the service runs.
    The handlers of `eager` paths start without a task, and call `become_task`
    themselves before they wait. /health answers while the loop turns; /health/ready is 200 or 503 by `ready`,
    and 503 while draining.
    """

    def __init__(
        self,
        name: str,
        routes: Mapping[tuple[str, str], Handler],
        *,
        ready: Callable[[], Readiness],
        log: Log,
        drain: Drain,
        headers: Headers = (),
        eager: Collection[str] = (),
    ) -> None:
        self.name = name
        self.log = log
        self.drain = drain
        self._ready = ready
        self.always = block(headers)
        self._eager = frozenset(eager) | {"/health", "/health/ready"}
        own: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/health/ready"): self._readiness,
        }
        self._routes = {**own, **routes}
        self._paths = {path for _, path in self._routes}
        self._trees = sorted((path for path in self._paths if path.endswith("/**")), key=len, reverse=True)
        self._id_prefix = secrets.token_hex(6)
        self._id_numbers = count(1)

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever comes of it, and write its line in the log."""
        now = asyncio.get_running_loop().time
        exchange.began_at = now()
        exchange.always = self.always
        exchange.id = self._id_for(exchange.given_id)
        path = exchange.path
        route = path if path in self._paths else self._pattern(exchange)
        self.drain.inflight += 1
        try:
            await self._answer(exchange, route)
        finally:
            self.drain.inflight -= 1
            exchange.ended()
            self._log_request(exchange, route, now() - exchange.began_at)

    def _id_for(self, given: bytes | None) -> str:
        """The client's own, if it can stand in a log and a header."""
        if given is not None and _REQUEST_ID.match(given):
            return given.decode("ascii")
        return f"{self._id_prefix}-{next(self._id_numbers):x}"

    def _pattern(self, exchange: Exchange) -> str:
        """The route of a path that is not one itself: one that ends in stars, or the path, which leads nowhere."""
        parent, _, tail = exchange.path.rpartition("/")
        pattern = f"{parent}/*"
        if tail and pattern in self._paths:
            exchange.tail = tail
            return pattern
        for tree in self._trees:
            trunk = tree.removesuffix("**")
            if exchange.path.startswith(trunk) and exchange.path != trunk:
                exchange.tail = exchange.path.removeprefix(trunk)
                return tree
        return exchange.path

    async def _answer(self, exchange: Exchange, route: str) -> None:
        try:
            handler = self._routes.get((exchange.method, route))
            if handler is None:
                raise self._no_route(exchange, route)
            if route not in self._eager:
                await become_task()
            await handler(exchange)
            if not exchange.complete and not exchange.gone:
                raise RuntimeError("the handler returned without an end to its answer")
        except WeirError as error:
            await self._problem(exchange, error)
        except asyncio.CancelledError:  # by a client that left, or by the end of the drain's grace
            if exchange.gone:
                exchange.log.setdefault("outcome", Outcome.CLIENT_GONE)
            else:
                await self._problem(exchange, Refused(Outcome.DRAINING, "this service is shutting down"))
        except Exception as error:
            self.log.error("a handler failed", id=exchange.id, path=route, traceback=_trace(error))
            await self._problem(exchange, WeirError(Outcome.INTERNAL, "an internal error; the log has its id"))

    def _no_route(self, exchange: Exchange, route: str) -> BadInput:
        if route in self._paths:
            allowed = ", ".join(sorted(method for method, path in self._routes if path == route))
            message = f"{exchange.method} is not allowed here; use {allowed}"
            return BadInput(message, status=405, code="method_not_allowed")
        return BadInput(f"there is nothing at {exchange.path[:200]}", status=404, code="not_found")

    async def _problem(self, exchange: Exchange, error: WeirError) -> None:
        exchange.log.setdefault("outcome", error.outcome)
        if exchange.started or exchange.gone:
            return
        await exchange.refuse(error)

    def _log_request(self, exchange: Exchange, route: str, seconds: float) -> None:
        known = route if route in self._paths else "other"
        status = 499 if exchange.gone and exchange.log.get("outcome") == Outcome.CLIENT_GONE else exchange.status
        fields = {
            "id": exchange.id, "method": exchange.method, "path": known, "status": status,
            "ms": round(seconds * 1000, 2), **exchange.log,
        }  # fmt: skip
        self.log.write("DEBUG" if known in HEALTH_ROUTES else "INFO", "request", fields)

    async def _health(self, exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode({"status": "ok", "service": self.name}))

    async def _readiness(self, exchange: Exchange) -> None:
        ready = self._ready()
        ok = ready.ok and not self.drain.draining
        state = "ready" if ok else "draining" if self.drain.draining else "not ready"
        await exchange.reply(
            200 if ok else 503, msgspec.json.encode({"status": state, "service": self.name, **ready.detail})
        )


def _trace(error: Exception) -> str:
    """Where it failed, without the values: an exception's text may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(
        f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in reversed(frames)
    )
    return f"{type(error).__name__} in {places}"
