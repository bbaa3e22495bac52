"""The composition root: the parts of the governor are created and connected here only."""

from __future__ import annotations

from random import Random
from urllib.parse import urlsplit

from services.governor.backends import Backend, HttpBackend, StubBackend
from services.governor.config import GovernorSettings, deprecated
from services.governor.gate import Gate, GovernorLimits
from services.governor.metrics import GovernorMetrics
from services.governor.server import GovernorServer, ServerLimits
from services.runtime.api import new_api
from services.runtime.asgi import AsgiApp
from services.runtime.descriptors import connections_allowed
from services.runtime.drain import Drain
from services.runtime.edge_metrics import LostLines
from services.runtime.exposition import Registry
from services.runtime.health import Readiness, add_health
from services.runtime.http import App
from services.runtime.ids import ids_of
from services.runtime.internal import inner_checks, is_health
from services.runtime.keepalive import Pool
from services.runtime.log import Log
from services.runtime.serve import Process
from services.runtime.telemetry import add_metrics, new_registry
from services.runtime.tracing import Tracer, tracer_of

NAME = "governor"


def build(settings: GovernorSettings, *, rng: Random | None = None, log: Log | None = None) -> Process:
    """A governor that is ready to run.

    `rng` drives every random choice, ids included; by default the operating system seeds a generator and makes the ids.
    """
    log = log or Log(NAME, settings.log_level)
    for old, new in deprecated().items():
        log.warning("deprecated setting: the next release does not read it", setting=old, replacement=new)
    registry = new_registry()
    metrics = GovernorMetrics(registry)
    tracer = tracer_of(settings, NAME, NAME, registry, log, rng)
    LostLines(registry, log)
    gate = Gate(
        cap=settings.governor_max_inflight,
        bounds=bounds(settings),
        random=(Random() if rng is None else rng).random,
        tokens=settings.tokens,
    )
    limits = ServerLimits(
        write_s=settings.write_stall_s,
        keepalive_every_s=settings.governor_keepalive_s,
        connections=max_connections(settings),
        source_share=settings.max_source_share,
    )
    drain = Drain()
    server = GovernorServer(gate, backend(settings, tracer), limits=limits, metrics=metrics, log=log)
    metrics.watch(gate, lambda: len(server.connections))
    return Process(
        name=NAME,
        listener=server,
        metrics=http_side(registry, log, drain),
        log=log,
        drain=drain,
        host=settings.host,
        port=settings.governor_port,
        metrics_host=settings.metrics_host,
        metrics_port=settings.metrics_port,
        metrics_checks=inner_checks(
            settings.metrics_host, token=settings.shared_token, allowed_hosts=settings.allowed_hosts, is_open=is_health
        ),
        drain_timeout_s=settings.drain_timeout_s,
        drain_delay_s=settings.drain_delay_s,
        watchdog_s=settings.watchdog_s,
        port_variable="GOVERNOR_PORT",
        tracer=tracer,
        new_id=ids_of(rng),
        registry=registry,
        inside=server,
    )


def http_side(registry: Registry, log: Log, drain: Drain) -> App:
    """The metrics listener's app: health and metrics."""
    api = new_api("Weir governor, HTTP side", "Health and metrics; the governor itself speaks its own protocol.")
    add_health(api, NAME, lambda: Readiness(True), drain)
    add_metrics(api, registry)
    return AsgiApp(api, log)


def backend(settings: GovernorSettings, tracer: Tracer | None = None) -> Backend:
    if settings.governor_backend == "stub":
        return StubBackend(settings.governor_stub_ms / 1000)
    pool = Pool(settings.governor_upstream_url, max_connections=settings.governor_max_inflight)
    key = settings.governor_upstream_key.get_secret_value()
    query = urlsplit(settings.governor_upstream_url).query
    return HttpBackend(pool, api_key=key, within_s=settings.http_timeout_s, query=query, tracer=tracer)


def bounds(settings: GovernorSettings) -> GovernorLimits:
    return GovernorLimits(
        line_bytes=settings.governor_line_bytes,
        jobs=settings.governor_jobs,
        connection_bytes=settings.governor_connection_bytes,
        total_bytes=settings.governor_total_bytes,
        idle_s=settings.governor_idle_s,
    )


def max_connections(settings: GovernorSettings) -> int:
    """As many as configured, or as the process's file descriptors allow beside those of the slots."""
    return connections_allowed(settings.max_connections, min(settings.governor_max_inflight, 8))
