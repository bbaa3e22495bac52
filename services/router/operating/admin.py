"""/admin on the metrics listener: docs/operations/admin.md lists the routes.

The listener is for loopback or an internal network, and `adminkey.py` checks the token. Every request is logged; of
rejected ones REFUSED_LINES at once and then one a second, with the count of those left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Response
from msgspec import Meta
from prometheus_client import CollectorRegistry

from services.core.bucket import Bucket
from services.core.ladder import LADDER
from services.core.policies import Policies
from services.router.deciding.dispatcher import Dispatcher
from services.router.operating.adminkey import AdminKey
from services.router.operating.policy import SetPolicies, Switches
from services.router.operating.state import state
from services.router.tenancy.tenants import Tenants
from services.runtime.api import Call, body_of, describe, json_answer, new_api
from services.runtime.asgi import AsgiApp
from services.runtime.drain import Drain
from services.runtime.errors import BadInput, WeirError
from services.runtime.http import App, Exchange
from services.runtime.log import Log
from services.runtime.telemetry import add_metrics


class SetLevel(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """Hold a class at a level."""

    level: Annotated[int, Meta(ge=0, lt=len(LADDER))] | None
    class_name: str | None = None


class Pause(msgspec.Struct, frozen=True):
    """Pause a tenant, or resume it."""

    tenant: str
    paused: bool = True


class SetDrain(msgspec.Struct, frozen=True):
    """Drain a worker, or use it again; without a worker, drain the router."""

    worker: str | None = None
    drain: bool = True


EXAMPLES = (
    SetLevel(2, "batch"), Pause("acme"), SetDrain("gpu-0"), SetPolicies(admission=False), Policies(admission=False),
)  # fmt: skip
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
REFUSED_LINES = 10


def has_its_own_key(path: str) -> bool:
    """Whether AdminKey, and not the listener's own check, protects this path."""
    return path.startswith(("/admin/", "/console/")) or path == "/console"


class AdminRoutes:
    """`sharing`: what a router that shares its workers adds to its state."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tenants: Tenants,
        drain: Drain,
        switches: Switches,
        log: Log,
        key: AdminKey,
        sharing: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._sharing = sharing
        self._tenants = tenants
        self._drain = drain
        self._switches = switches
        self._log = log
        self._key = key
        self._refused_lines = Bucket(1.0, REFUSED_LINES)
        self._unlogged = 0
        self._routes: dict[tuple[str, str], tuple[Callable[..., Any], dict[str, Any]]] = {
            ("GET", "/admin/state"): (self._state, describe("The router's state: every number behind its decisions.")),
            ("POST", "/admin/level"): (
                self._set_level,
                describe("Hold a class at a degradation level.", request=SetLevel, reply=SetLevel),
            ),
            ("GET", "/admin/policy"): (self._policy, describe("Which mechanisms are on.", reply=Policies)),
            ("POST", "/admin/policy"): (
                self._set_policy,
                describe("Switch mechanisms on or off.", request=SetPolicies, reply=Policies),
            ),
            ("POST", "/admin/pause"): (
                self._pause,
                describe("Pause or resume a tenant.", request=Pause, reply=Pause),
            ),
            ("POST", "/admin/drain"): (
                self._set_drain,
                describe("Drain a worker, or the router.", request=SetDrain, reply=SetDrain),
            ),
        }

    def add_to(self, api: FastAPI) -> None:
        """Add the routes. Each checks the key before it reads anything, an unknown path included."""
        allowed = [Depends(self._audited)]
        for (method, path), (endpoint, description) in self._routes.items():
            api.add_api_route(path, endpoint, methods=[method], dependencies=allowed, **description)
        api.add_api_route(
            "/admin/{rest:rest}", self._unknown, methods=METHODS, dependencies=allowed, include_in_schema=False,
            response_model=None,
        )  # fmt: skip

    async def _audited(self, exchange: Call) -> AsyncIterator[None]:
        """Check the key, and log the request."""
        try:
            self._check_key(exchange)
            yield
        except WeirError as error:
            self._log_refusal(exchange, error)
            raise
        self._log.info("admin request", method=exchange.method, path=exchange.path, status=200)

    def _log_refusal(self, exchange: Exchange, error: WeirError) -> None:
        if not self._refused_lines.try_take(asyncio.get_running_loop().time()):
            self._unlogged += 1
            return
        asked = {"method": exchange.method, "path": exchange.path[:200]}
        self._log.warning(
            "admin request refused", **asked, status=error.status, code=error.code, not_logged=self._unlogged
        )
        self._unlogged = 0

    def _check_key(self, exchange: Exchange) -> None:
        """Raises BadInput, 403, for a web page: a browser on this machine reaches loopback, and sends an Origin."""
        if exchange.header(b"origin") is not None:
            raise BadInput("/admin does not accept requests from web pages", status=403, code="forbidden")
        self._key.check(exchange)

    async def _unknown(self, exchange: Call) -> Response:
        methods = [method for method, path in self._routes if path == exchange.path]
        if methods:
            wrong = BadInput(f"use {methods[0]}", status=405, code="method_not_allowed")
            wrong.headers = ((b"allow", ", ".join(methods).encode("ascii")),)
            raise wrong
        known = ", ".join(path for _, path in self._routes)
        raise BadInput(f"no such route; the routes are {known}", status=404, code="not_found")

    async def _state(self) -> Response:
        now = asyncio.get_running_loop().time()
        found = state(now, self._dispatcher, self._tenants, draining=self._drain.draining)
        return json_answer(found if self._sharing is None else found | {"sharing": self._sharing()})

    async def _policy(self) -> Response:
        return json_answer(self._switches.now)

    async def _set_policy(self, change: Annotated[SetPolicies, Depends(body_of(SetPolicies))]) -> Response:
        return json_answer(self._switches.turn(change))

    async def _set_level(self, change: Annotated[SetLevel, Depends(body_of(SetLevel))]) -> Response:
        try:
            self._dispatcher.scheduler.hold_level(change.class_name, change.level)
        except ValueError as error:
            raise BadInput(f"class: {error}", "class") from None
        self._log.warning("level set by the operator", of_class=change.class_name, at=change.level)
        return json_answer(change)

    async def _pause(self, change: Annotated[Pause, Depends(body_of(Pause))]) -> Response:
        if not self._tenants.pause(change.tenant, change.paused):
            raise BadInput("tenant: no tenant has this name", "tenant", status=404, code="not_found")
        self._log.warning("tenant paused" if change.paused else "tenant resumed", tenant=change.tenant)
        return json_answer(change)

    async def _set_drain(self, change: Annotated[SetDrain, Depends(body_of(SetDrain))]) -> Response:
        if change.worker is None:
            if not change.drain:
                raise BadInput("drain: a draining router cannot resume; restart it", "drain")
            self._drain.begin()
            return json_answer(change)
        worker = next((one for one in self._dispatcher.fleet.workers if one.name == change.worker), None)
        if worker is None:
            raise BadInput("worker: no worker has this name", "worker", status=404, code="not_found")
        worker.held_back = change.drain
        self._dispatcher.fleet.looked(worker)
        self._log.warning("worker draining by the operator" if change.drain else "worker resumed", worker=worker.name)
        return json_answer(change)


class MetricsListener:
    """The application of the metrics listener: the console, if there is one, and all other routes."""

    always = b""

    def __init__(self, others: App, console: App | None) -> None:
        self._others = others
        self._console = console

    async def handle(self, exchange: Exchange) -> None:
        console = self._console if exchange.path.startswith("/console") else None
        await (console or self._others).handle(exchange)


def metrics_listener(registry: CollectorRegistry, log: Log, admin: AdminRoutes, console: App | None) -> App:
    api = new_api("Weir router, metrics listener", "Metrics, the router's state, and its switches.", examples=EXAMPLES)
    add_metrics(api, registry)
    admin.add_to(api)
    return MetricsListener(AsgiApp(api, log), console)
