"""A service's HTTP face: routes in a table, one error boundary, one log line per request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

import msgspec

from services.core.outcome import Outcome
from services.runtime.drain import Drain
from services.runtime.errors import BadInput, Refused, WeirError, place_of
from services.runtime.framing import Headers, block
from services.runtime.http import Exchange, Handler, become_task
from services.runtime.ids import ids_of
from services.runtime.log import Log
from services.runtime.tracing import Tracer, end_of_request, place

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
HEALTH_ROUTES = ("/health", "/health/ready")
MOST_ASKED = 256


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can work, and what it lacks. `detail` is the body of /health/ready."""

    ok: bool
    detail: dict[str, object] = field(default_factory=dict)


class Service:
    """What one service answers.

    `routes` maps (METHOD, path) to a handler; a path that ends in `/*` matches one more segment (`exchange.tail`), and
    one that ends in `/**` whatever follows, slashes and all.
    `headers` stand on every answer; `always`, the block made of them, may be replaced while the service runs.
    The handlers of `eager` paths start without a task, and call `become_task`
    themselves before they wait. /health answers while the loop turns; /health/ready is 200 or 503 by `ready`,
    and 503 from the moment the service says that it will leave. `rng` makes the ids of requests; by default they are
    the operating system's.
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
        rng: Random | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.drain = drain
        self.tracer: Tracer | None = None
        self._ready = ready
        self.always = block(headers)
        self._eager = frozenset(eager) | {"/health", "/health/ready"}
        own: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/health/ready"): self._readiness,
        }
        self._routes = {**own, **routes}
        self._paths = dict.fromkeys(path for _, path in self._routes)
        self._trees = sorted((path for path in self._paths if path.endswith("/**")), key=len, reverse=True)
        self._id_prefix = ids_of(rng)(6)
        self._id_numbers = count(1)
        self._asked: dict[tuple[str, str, int], bytes] = {}

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever comes of it, and write its line in the log."""
        now = asyncio.get_running_loop().time
        exchange.began_at = now()
        exchange.always = self.always
        exchange.id = self._id_for(exchange.given_id)
        path = exchange.path
        route = path if path in self._paths else self._pattern(exchange)
        if exchange.in_trace or self.tracer is not None:
            exchange.trace = place(self.tracer, exchange.headers, exchange.method, exchange.began_at)
        self.drain.inflight += 1
        try:
            await self._answer(exchange, route)
        finally:
            self.drain.inflight -= 1
            exchange.ended()
            self._log_request(exchange, route, now())

    def _id_for(self, given: bytes | None) -> str:
        """The client's own, if it can stand in a log and a header."""
        if given is not None and _REQUEST_ID.fullmatch(given):
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
            self.log.error("a handler failed", id=exchange.id, path=route, traceback=place_of(error))
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

    def _log_request(self, exchange: Exchange, route: str, now: float) -> None:
        known = route if route in self._paths else "other"
        status = 499 if exchange.gone and exchange.log.get("outcome") == Outcome.CLIENT_GONE else exchange.status
        fields = exchange.log
        if exchange.trace is not None:
            end_of_request(exchange.trace, exchange.method, known, status, now, {"id": exchange.id, **fields})
            fields["trace_id"] = exchange.trace.trace_id
        asked, id = (exchange.method, known, status), exchange.id.encode("ascii")
        took_ms = (now - exchange.began_at) * 1000
        begun = b'"id":"%b",%b,"ms":%.2f' % (id, self._asked.get(asked) or self._encode(asked), took_ms)
        self.log.write("DEBUG" if known in HEALTH_ROUTES else "INFO", "request", fields, begun)

    def _encode(self, asked: tuple[str, str, int]) -> bytes:
        """What many lines of the log say alike. Encoded once, but for what a client could invent without end."""
        method, path, status = asked
        found = msgspec.json.encode({"method": method, "path": path, "status": status})[1:-1]
        if len(self._asked) < MOST_ASKED:
            self._asked[asked] = found
        return found

    async def _health(self, exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode({"status": "ok", "service": self.name}))

    async def _readiness(self, exchange: Exchange) -> None:
        ready = self._ready()
        ok = ready.ok and not self.drain.announced
        state = "ready" if ok else "draining" if self.drain.announced else "not ready"
        await exchange.reply(
            200 if ok else 503, msgspec.json.encode({"status": state, "service": self.name, **ready.detail})
        )
