"""The console's routes: the page, the stream of frames, a request's timeline, and the changes it can make.

In lab mode they are on the public port, where identities are not checked anyway. With a tenants file they show every
tenant, so they are only on the metrics listener, behind the admin token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from services.console.fanout import EVERY_S, Fanout
from services.console.files import Files
from services.console.guard import guarded
from services.contracts.console import Hello
from services.router.console.feed import MAX_DECISIONS, Feed
from services.router.console.sharing import Json
from services.router.console.tables import MAX_TENANTS, MAX_WORKERS
from services.router.console.timeline import timeline
from services.router.operating.adminkey import AdminKey
from services.router.operating.policy import SetPolicies, Switches
from services.router.serving.pipeline import Pipeline
from services.runtime.errors import BadInput
from services.runtime.http import Exchange, Handler
from services.runtime.log import Log
from services.runtime.strictjson import decode

Routes = dict[tuple[str, str], Handler]
READS = ("GET", "HEAD")
POLICY = "/console/policy"


def console_routes(
    pipeline: Pipeline,
    log: Log,
    *,
    lab: bool,
    key: AdminKey | None,
    more: Mapping[tuple[str, str], Handler],
    sharing: Callable[[], Json] | None,
) -> Routes:
    """(METHOD, path) -> handler. `more`: further routes. `key` protects all but the page's files, which ask for it.

    `sharing`: what a router that shares its workers adds to its state.
    """
    storm, policy = _has(more, "/console/storm"), _has(more, POLICY)
    handlers = _Handlers(pipeline, log, lab=lab, storm=storm, policy=policy, sharing=sharing)
    files = Files()
    protected: Routes = {
        ("GET", "/console/events"): handlers.fanout.watch,
        ("GET", "/console/requests/{id}"): handlers.request,
        **{route: handler if route[0] in READS else guarded(handler) for route, handler in more.items()},
    }
    return {
        ("GET", "/console"): files.page,
        ("GET", "/console/"): files.page,
        ("GET", "/console/static/{path:rest}"): files.file,
        **{route: handler if key is None else _behind(key, handler) for route, handler in protected.items()},
    }


def _has(routes: Mapping[tuple[str, str], Handler], path: str) -> bool:
    return any(route[1] == path for route in routes)


def switching(switches: Switches) -> Handler:
    """POST /console/policy: apply the policies of the body."""

    async def handle(exchange: Exchange) -> None:
        policies = switches.turn(decode(exchange.body, SetPolicies))
        await exchange.reply(200, msgspec.json.encode(policies))

    return handle


def _behind(key: AdminKey, handler: Handler) -> Handler:
    async def handle(exchange: Exchange) -> None:
        key.check(exchange)
        await handler(exchange)

    return handle


class _Handlers:
    """Handlers of the stream and of a request's timeline."""

    def __init__(
        self,
        pipeline: Pipeline,
        log: Log,
        *,
        lab: bool,
        storm: bool,
        policy: bool,
        sharing: Callable[[], Json] | None,
    ) -> None:
        self._pipeline = pipeline
        self._encoder = msgspec.json.Encoder()
        self._feed = Feed(pipeline.dispatcher, pipeline.metrics, pipeline.journal, pipeline.drain, sharing)
        hello = self._encoder.encode(
            Hello(lab, storm, policy, MAX_TENANTS, MAX_WORKERS, MAX_DECISIONS, round(EVERY_S * 1000))
        )
        self.fanout = Fanout(lambda: hello, self._frame, log)
        pipeline.drain.on_begin(self.fanout.close)

    def _frame(self) -> bytes:
        return self._encoder.encode(self._feed.frame(asyncio.get_running_loop().time()))

    async def request(self, exchange: Exchange) -> None:
        """GET /console/requests/ID. Raises BadInput, 404."""
        id, journal, now = exchange.tail, self._pipeline.journal, asyncio.get_running_loop().time()
        journal.looked(now)
        found = journal.find(id)
        if found is None:
            raise BadInput(
                "no request with this id is known, or the router no longer remembers it", status=404, code="not_found"
            )
        life = timeline(found, self._pipeline.dispatcher.scheduler, now)
        await exchange.reply(200, self._encoder.encode(life), headers=[(b"cache-control", b"no-store")])
