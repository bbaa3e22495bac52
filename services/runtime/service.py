"""A service's HTTP side: its FastAPI application, its hot routes, one error boundary, one log line per request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from itertools import count
from random import Random

import msgspec
from fastapi import FastAPI

from services.core.outcome import Outcome
from services.runtime.asgi import serve
from services.runtime.drain import Drain
from services.runtime.errors import Refused, WeirError, place_of
from services.runtime.framing import Headers, block
from services.runtime.health import HEALTH_ROUTES
from services.runtime.http import Exchange, Handler, become_task
from services.runtime.ids import ids_of
from services.runtime.log import Log
from services.runtime.tracing import Tracer, end_of_request, start_trace

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
MAX_CACHED_PATHS = 256


class Service:
    """The `App` of a service's public listener.

    `api` has every route. `hot` maps (METHOD, path) to handlers that answer an exchange without `api`, start without a
    task, and call `become_task` before they wait. `headers` are sent with every answer; their block `always` may be
    replaced at run time. `rng` makes request ids; by default the operating system does. Requests to `quiet` routes are
    logged at DEBUG, as those to the health routes are.
    """

    def __init__(
        self,
        name: str,
        api: FastAPI,
        *,
        log: Log,
        drain: Drain,
        headers: Headers = (),
        hot: Mapping[tuple[str, str], Handler] | None = None,
        rng: Random | None = None,
        quiet: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.api = api
        self.log = log
        self.drain = drain
        self.tracer: Tracer | None = None
        self.always = block(headers)
        self._hot = dict(hot or {})
        self._quiet = frozenset([*HEALTH_ROUTES, *quiet])
        self._id_prefix = f"{ids_of(rng)(6)}-"
        self._id_numbers = count(1)
        self._encoded: dict[tuple[str, str, int], bytes] = {}

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever its outcome, and log it."""
        now = asyncio.get_running_loop().time
        exchange.read_at = read_at = now()
        exchange.began_at = read_at - exchange.unread_s
        exchange.always = self.always
        exchange.id = self._id_for(exchange.client_id)
        hot = self._hot.get((exchange.method, exchange.path))
        if hot is not None:
            exchange.route = exchange.path
        if exchange.in_trace or self.tracer is not None:
            headers = exchange.headers if exchange.in_trace else ()
            exchange.trace = start_trace(self.tracer, headers, exchange.method, exchange.began_at)
        self.drain.inflight += 1
        refusal: WeirError | None = None
        try:
            try:
                if hot is not None:
                    await hot(exchange)
                else:
                    await become_task()
                    await serve(self.api, exchange)
                if not exchange.complete and not exchange.gone:
                    raise RuntimeError("the handler returned without completing its response")
            except (Exception, asyncio.CancelledError) as error:
                refusal = self._refusal_for(exchange, error)
            if refusal is not None:
                await self._problem(exchange, refusal)
        finally:
            self.drain.inflight -= 1
            exchange.ended()
            self._log_request(exchange, now())

    def _id_for(self, client_id: bytes | None) -> str:
        """The client's own id, if it is safe in a log and a header; otherwise a new one."""
        if client_id is not None and _REQUEST_ID.fullmatch(client_id):
            return client_id.decode("ascii")
        return self._id_prefix + hex(next(self._id_numbers))[2:]

    def _refusal_for(self, exchange: Exchange, error: BaseException) -> WeirError | None:
        """What to answer after this error of a handler; None if the client is gone."""
        if isinstance(error, WeirError):
            return error
        if isinstance(error, asyncio.CancelledError):  # the client is gone, or the drain's grace period is over
            if not exchange.gone:
                return Refused(Outcome.DRAINING, "this service is shutting down")
            exchange.log.setdefault("outcome", Outcome.CLIENT_GONE)
            return None
        self.log.error("a handler failed", id=exchange.id, path=exchange.route, traceback=place_of(error))
        return WeirError(Outcome.INTERNAL, "an internal error; the log has its id")

    async def _problem(self, exchange: Exchange, error: WeirError) -> None:
        exchange.log.setdefault("outcome", error.outcome)
        if exchange.started or exchange.gone:
            return
        await exchange.refuse(error)

    def _log_request(self, exchange: Exchange, now: float) -> None:
        route = exchange.route or "other"
        status = 499 if exchange.gone and exchange.log.get("outcome") == Outcome.CLIENT_GONE else exchange.status
        fields = exchange.log
        if exchange.trace is not None:
            exchange.trace.attributes["weir.id"] = exchange.id
            end_of_request(exchange.trace, exchange.method, exchange.scheme, route, status, now, fields)
            fields["trace_id"] = exchange.trace.trace_id
        key = exchange.method, route, status
        what = self._encoded.get(key) or self._encode(key)
        prefix = b'"id":"%b",%b,"ms":%.2f' % (exchange.id.encode("ascii"), what, (now - exchange.began_at) * 1000)
        self.log.write("DEBUG" if route in self._quiet else "INFO", "request", fields, prefix)

    def _encode(self, key: tuple[str, str, int]) -> bytes:
        """Log fields that many requests share. At most MAX_CACHED_PATHS are cached: clients choose some of them."""
        method, path, status = key
        found = msgspec.json.encode({"method": method, "path": path, "status": status})[1:-1]
        if len(self._encoded) < MAX_CACHED_PATHS:
            self._encoded[key] = found
        return found
