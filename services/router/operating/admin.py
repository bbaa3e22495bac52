"""The operator's side, on the metrics listener: what the router sees, and the few things that a person may turn.

    GET  /admin/state                                          everything that decides, as JSON
    POST /admin/level    {"class": "batch", "level": 2}        hold a class (null: all) at a level; null: automatic
    GET  /admin/policy                                         which mechanisms are on
    POST /admin/policy   {"admission": false}                  switch one off or on (`policy.py`)
    POST /admin/pause    {"tenant": "acme", "paused": true}    refuse a tenant's new requests, or let it go on
    POST /admin/drain    {"worker": "gpu-0", "drain": true}    nothing new for a worker; with false it goes on
    POST /admin/drain    {}                                    the router itself refuses from now on, for good

The listener is for loopback or an inner network. Who may use these routes is `adminkey`'s to say: what they show is
every tenant's, and what they do concerns everyone. Each request to them is a line in the log; of those that are refused
`REFUSED_LINES` at once and one a second, with the count of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from prometheus_client import CollectorRegistry

from services.core.bucket import Bucket
from services.core.ladder import LADDER
from services.router.deciding.dispatcher import Dispatcher
from services.router.operating.adminkey import AdminKey
from services.router.operating.policy import Switches
from services.router.operating.state import state
from services.router.tenancy.tenants import Tenants
from services.runtime.drain import Drain
from services.runtime.errors import BadInput, WeirError
from services.runtime.http import App, Exchange
from services.runtime.log import Log
from services.runtime.strictjson import decode
from services.runtime.telemetry import MetricsApp


class SetLevel(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """Hold a class at a level."""

    level: Annotated[int, Meta(ge=0, lt=len(LADDER))] | None
    class_name: str | None = None


class Pause(msgspec.Struct, frozen=True):
    """Hold a tenant back, or let it go on."""

    tenant: str
    paused: bool = True


class SetDrain(msgspec.Struct, frozen=True):
    """Empty a worker, or let it take requests again; without a worker, the router."""

    worker: str | None = None
    drain: bool = True


REFUSED_LINES = 10


def has_its_own_key(path: str) -> bool:
    """What this listener keeps with `AdminKey`; the console's page has to be here to ask for that key."""
    return path.startswith(("/admin/", "/console/")) or path == "/console"


class AdminApp:
    """What answers on the metrics listener: /metrics for all, /admin for whoever may, and the console if it is here."""

    always = b""

    def __init__(
        self,
        registry: CollectorRegistry,
        dispatcher: Dispatcher,
        tenants: Tenants,
        drain: Drain,
        switches: Switches,
        log: Log,
        key: AdminKey,
        *,
        console: App | None = None,
    ) -> None:
        self._metrics = MetricsApp(registry)
        self._dispatcher = dispatcher
        self._tenants = tenants
        self._drain = drain
        self._log = log
        self._key = key
        self._refused_lines = Bucket(1.0, REFUSED_LINES)
        self._untold = 0
        self._console = console
        self._routes: dict[tuple[str, str], Callable[[Exchange], Any]] = {
            ("GET", "/admin/state"): self._state,
            ("POST", "/admin/level"): self._set_level,
            ("GET", "/admin/policy"): switches.show,
            ("POST", "/admin/policy"): switches.turn,
            ("POST", "/admin/pause"): self._pause,
            ("POST", "/admin/drain"): self._set_drain,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; errors in the one envelope."""
        if self._console is not None and exchange.path.startswith("/console"):
            await self._console.handle(exchange)
            return
        if not exchange.path.startswith("/admin/"):
            await self._metrics.handle(exchange)
            return
        try:
            self._check_key(exchange)
            answer = self._route(exchange)(exchange)
        except WeirError as error:
            self._log_refusal(exchange, error)
            await exchange.refuse(error)
            return
        self._log.info("admin request", method=exchange.method, path=exchange.path, status=200)
        exchange.reply_now(200, msgspec.json.encode(answer))

    def _log_refusal(self, exchange: Exchange, error: WeirError) -> None:
        if not self._refused_lines.try_take(asyncio.get_running_loop().time()):
            self._untold += 1
            return
        asked = {"method": exchange.method, "path": exchange.path[:200]}
        self._log.warning("admin request refused", **asked, status=error.status, code=error.code, untold=self._untold)
        self._untold = 0

    def _check_key(self, exchange: Exchange) -> None:
        """Who may come. A page in a browser on this machine reaches loopback, and may not: it names its origin."""
        if exchange.header(b"origin") is not None:
            raise BadInput("/admin is not for web pages", status=403, code="forbidden")
        self._key.check(exchange)

    def _route(self, exchange: Exchange) -> Callable[[Exchange], Any]:
        route = self._routes.get((exchange.method, exchange.path))
        if route is not None:
            return route
        methods = [method for method, path in self._routes if path == exchange.path]
        if methods:
            raise BadInput(f"use {methods[0]}", status=405, code="method_not_allowed")
        known = ", ".join(path for _, path in self._routes)
        raise BadInput(f"there is nothing here; there are {known}", status=404, code="not_found")

    def _state(self, exchange: Exchange) -> Any:
        return state(asyncio.get_running_loop().time(), self._dispatcher, self._tenants, draining=self._drain.draining)

    def _set_level(self, exchange: Exchange) -> Any:
        wish = decode(exchange.body, SetLevel)
        try:
            self._dispatcher.weir.hold_level(wish.class_name, wish.level)
        except ValueError as error:
            raise BadInput(f"class: {error}", "class") from None
        self._log.warning("level held by the operator", of_class=wish.class_name, at=wish.level)
        return wish

    def _pause(self, exchange: Exchange) -> Any:
        wish = decode(exchange.body, Pause)
        if not self._tenants.pause(wish.tenant, wish.paused):
            raise BadInput("tenant: nobody is known by this name", "tenant", status=404, code="not_found")
        self._log.warning("tenant paused" if wish.paused else "tenant goes on", tenant=wish.tenant)
        return wish

    def _set_drain(self, exchange: Exchange) -> Any:
        wish = decode(exchange.body, SetDrain)
        if wish.worker is None:
            if not wish.drain:
                raise BadInput("drain: a router that drains does not come back; start it again", "drain")
            self._drain.begin()
            return wish
        worker = next((one for one in self._dispatcher.fleet.workers if one.name == wish.worker), None)
        if worker is None:
            raise BadInput("worker: there is none of this name", "worker", status=404, code="not_found")
        worker.held_back = wish.drain
        self._dispatcher.fleet.looked(worker)
        self._log.warning("worker held back" if wish.drain else "worker goes on", worker=worker.name)
        return wish
