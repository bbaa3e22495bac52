"""A service's HTTP face: routes in a table, one error boundary, one log line per request.

A plain ASGI application, because it is the hot path: measured on one core, bare ASGI carries three times what a
framework with validation does, and one `@app.middleware("http")` costs more than all of this file.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import traceback
import types
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
from starlette.types import Message, Receive, Scope, Send

from services.core.outcome import Outcome
from services.runtime.drain import Drain
from services.runtime.errors import BadInput, Refused, TooLarge, WeirError, problem
from services.runtime.log import Log
from services.runtime.peer import peer_of

_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,128}$")
MAX_UNGUARDED_BODY_BYTES = 1_048_576
HEALTH_ROUTES = ("/health", "/health/ready")


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can work, and what it lacks. `detail` is the body of /health/ready."""

    ok: bool
    detail: dict[str, object] = field(default_factory=dict)


def block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines, ready to be sent. Made once where they are the same for many answers."""
    return b"".join([b"%s: %s\r\n" % header for header in headers])


def unblock(lines: bytes) -> list[tuple[bytes, bytes]]:
    """What `block` was made of."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.split(b"\r\n")[:-1])]


class Exchange:
    """One request and its answer.

    `always` is a `block` of headers that stand on the answer whatever it will be, a refusal too. It begins as the
    service's own, and a handler may put another in its place until the answer starts.
    """

    __slots__ = (
        "_named",
        "_peer",
        "_send",
        "always",
        "body",
        "headers",
        "id",
        "log",
        "method",
        "path",
        "started",
        "status",
        "tail",
    )

    def __init__(
        self,
        scope: Scope,
        send: Send,
        body: bytes,
        new_id: Callable[[], str],
        always: bytes = b"",
    ) -> None:
        self.always = always
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.tail = ""
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.body = body
        self.status = 0
        self.started = False
        self.log: dict[str, object] = {}
        self._send = send
        self._named = dict(self.headers)
        self._peer = peer_of(scope)
        given = self._named.get(b"x-request-id")
        self.id = given.decode("ascii") if given and _REQUEST_ID.match(given) else new_id()

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, by its lower-case name; the last one where it is repeated."""
        return self._named.get(name)

    @property
    def gone(self) -> bool:
        """The client left before its answer was complete."""
        return self._peer.gone

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call this once when the client leaves; at once if it has already left."""
        self._peer.on_gone(callback)

    async def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send the whole answer."""
        self.started = True
        self.status = status
        sent = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", self.id.encode("ascii")),
            *unblock(self.always),
            *headers,
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, error: WeirError) -> None:
        """Send a refusal as the problem body, with its hint."""
        status, headers, body = problem(error)
        await self.reply(status, body, headers=headers)

    async def start(self, status: int, content_type: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Send status and headers; `write` and `end` follow."""
        self.started = True
        self.status = status
        own = [(b"content-type", content_type), (b"x-request-id", self.id.encode("ascii")), *unblock(self.always)]
        sent = [*own, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def write(self, chunk: bytes) -> None:
        """Send a piece of a streamed answer; waits while the client reads slower than we write."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """End a streamed answer."""
        await self._send({"type": "http.response.body", "body": b""})


Handler = Callable[[Exchange], Awaitable[None]]


@types.coroutine
def become_task() -> Generator[None, None, None]:
    """Go on in a task of one's own: before anything that waits, has a timeout or may be cancelled."""
    yield


class Service:
    """The ASGI application of one service.

    `routes` maps (METHOD, path) to a handler; a path that ends in `/*` matches one more segment (`exchange.tail`).
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
        headers: Sequence[tuple[bytes, bytes]] = (),
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
        prefix, numbers = secrets.token_hex(6), count(1)
        self._new_id = lambda: f"{prefix}-{next(numbers):x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{self.name} speaks HTTP only, not {scope['type']}")
        route, tail = self._match(scope["path"])
        handler = self._routes.get((scope["method"], route))
        began = asyncio.get_running_loop().time()
        exchange = Exchange(scope, send, b"", self._new_id, self.always)
        exchange.tail = tail
        self.drain.inflight += 1
        try:
            await self._answer(exchange, handler, route, receive)
        finally:
            self.drain.inflight -= 1
            self._log_request(exchange, route, asyncio.get_running_loop().time() - began)

    def _match(self, path: str) -> tuple[str, str]:
        if path in self._paths:
            return path, ""
        parent, _, tail = path.rpartition("/")
        pattern = f"{parent}/*"
        return (pattern, tail) if tail and pattern in self._paths else (path, "")

    async def _answer(self, exchange: Exchange, handler: Handler | None, route: str, receive: Receive) -> None:
        try:
            if handler is None:
                self._no_route(exchange, route)
            else:
                exchange.body = await _whole_body(receive)
                if route not in self._eager:
                    await become_task()
                await handler(exchange)
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

    def _no_route(self, exchange: Exchange, route: str) -> None:
        if route in self._paths:
            allowed = ", ".join(sorted(method for method, path in self._routes if path == route))
            raise BadInput(
                f"{exchange.method} is not allowed here; use {allowed}", status=405, code="method_not_allowed"
            )
        raise BadInput(f"there is nothing at {exchange.path[:200]}", status=404, code="not_found")

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


async def _whole_body(receive: Receive) -> bytes:
    """The body; in one message where the guard stands before us, bounded where it does not (in tests)."""
    message: Message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_UNGUARDED_BODY_BYTES:
            raise TooLarge(f"the body exceeds {MAX_UNGUARDED_BODY_BYTES} bytes")
    return body


def _trace(error: Exception) -> str:
    """Where it failed, without the values: an exception's text may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(
        f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in reversed(frames)
    )
    return f"{type(error).__name__} in {places}"
