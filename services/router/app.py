"""Assembles the router: the only place where implementations are connected."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from services.core.account import QueueBounds, TenantSpec
from services.core.choices import SchedulerSettings
from services.core.limit import InflightCap
from services.core.retries import RetryBudget
from services.core.scheduler import Scheduler
from services.router.config import RouterSettings
from services.router.console.storm import storm_routes
from services.router.console.watching import POLICY, console_routes, switching
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.leasing import Leasing, UsageStores
from services.router.deciding.sizing import Sizes
from services.router.operating.admin import AdminRoutes, has_its_own_key, metrics_listener
from services.router.operating.adminkey import AdminKey
from services.router.operating.policy import Switches
from services.router.operating.production import Deployment, current_slots, warn_of_dangers
from services.router.operating.reloading import Reloading
from services.router.rag.retrieval import RetrievalClient, RetrievalWatch
from services.router.routes.api import INSTEAD, add_routes, hot_routes
from services.router.routes.examples import EXAMPLES
from services.router.serving.attempts import Attempts
from services.router.serving.context import Context
from services.router.serving.detached import DetachedRequests
from services.router.serving.pipeline import Pipeline
from services.router.telemetry.holdings import Holdings
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.router.telemetry.sharing import Sharing, sharing_state
from services.router.tenancy.keycheck import key_before_body
from services.router.tenancy.rates import Rate
from services.router.tenancy.tenants import OTHER, FileTenants, LabTenants, Tenants
from services.router.workers.announced import begin_with
from services.router.workers.cancels import Cancels
from services.router.workers.connect import SPARE_CONNECTIONS, connect
from services.router.workers.fleet import Fleet
from services.router.workers.leasedfleet import LeasedFleet
from services.router.workers.prober import Prober
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.api import add_native, new_api
from services.runtime.clock import unix_milliseconds
from services.runtime.drain import Drain
from services.runtime.health import Readiness, add_health
from services.runtime.hostcheck import PageCheck
from services.runtime.http import HeadCheck
from services.runtime.internal import inner_checks
from services.runtime.log import Log
from services.runtime.machine import Machine
from services.runtime.serve import Process, from_settings
from services.runtime.service import Service
from services.runtime.telemetry import new_registry

DESCRIPTION = (
    "A reverse proxy for LLM servers. It rejects requests that it cannot answer in time, and says when to retry."
)


def build(
    settings: RouterSettings,
    *,
    rng: Random | None = None,
    log: Log | None = None,
    machine: Machine | None = None,
    stores: UsageStores | None = None,
) -> Process:
    """The router, which listens when it is run. `rng`: all its randomness; default: the system's, also for ids.

    `machine`: the limits that the start warns of; without it they are not looked at. `stores`: what several routers
    exchange through, in place of the server at EXCHANGE_URL.
    """
    log, drain, registry = log or Log("router", settings.log_level), Drain(), new_registry()
    chance = Random() if rng is None else rng
    shared_token, lab = settings.shared_token, settings.tenants_file is None
    tenants = tenants_of(settings)
    metrics = RouterMetrics(registry)

    def connected(spec: WorkerSpec) -> Worker:
        return connect(spec, settings.max_inflight, shared_token, several_routers=settings.several_routers)

    workers = [connected(spec) for spec in settings.worker_specs()]
    fleet = LeasedFleet(workers, chance, loop_time) if settings.several_routers else Fleet(workers, chance)
    prober = Prober(fleet, settings.probe_interval_s, log, chance)
    dispatcher = Dispatcher(scheduler(settings, tenants, chance), fleet, InflightCap(settings.max_inflight), chance)
    dispatcher.configure(tenants.specs())
    leasing: Leasing | None = None
    if isinstance(fleet, LeasedFleet):
        leasing = several_routers(settings, dispatcher, fleet, tenants, log, chance, stores)
        registry.register(Sharing(leasing))
    registry.register(Holdings(dispatcher, lambda id: id if tenants.get(id) else OTHER))
    for tenant in (*tenants.ids(), OTHER):
        metrics.expect(tenant)
    retrieval = RetrievalClient(
        settings.retrieval_url,
        max_connections=settings.max_queue_size + settings.max_inflight,
        token=shared_token,
    )
    watch = RetrievalWatch(retrieval)
    journal = Journal()
    detached = DetachedRequests(metrics, journal, hold_s=2 * settings.max_deadline_ms / 1000)
    switches = Switches(dispatcher, detached, log)
    pipeline = Pipeline(
        settings=settings,
        tenants=tenants,
        dispatcher=dispatcher,
        attempts=Attempts(dispatcher, prober, RetryBudget(settings.retry_share), metrics),
        cancels=Cancels(),
        detached=detached,
        context=Context(settings, retrieval, dispatcher, Sizes(), metrics),
        retrieval=retrieval,
        metrics=metrics,
        journal=journal,
        drain=drain,
        random=chance.random,
    )
    drain.on_begin(dispatcher.drain)

    def ready() -> Readiness:
        return readiness(fleet, watch.lacking, named=lab)

    admin_key = AdminKey(settings.metrics_host, settings.admin_token.get_secret_value().encode() or shared_token, log)
    more = storm_routes(settings)
    if lab:
        more["POST", POLICY] = switching(switches)
    console = console_routes(pipeline, log, lab=lab, key=None if lab else admin_key, more=more)
    hot, api = hot_routes(pipeline), new_api("Weir", DESCRIPTION, examples=EXAMPLES, instead=INSTEAD)
    add_health(api, "router", ready, drain)
    add_routes(api, pipeline, hot)
    apart = api if lab else new_api("Weir console", "The operator's console.")  # on the metrics listener
    add_native(apart, console, {})
    sharing = None if leasing is None else partial(sharing_state, leasing)
    admin = AdminRoutes(dispatcher, tenants, drain, switches, log, admin_key, sharing)
    console_app = None if lab else Service("console", apart, log=log, drain=drain, rng=rng)

    async def start() -> None:
        switches.announce()
        await prober.look_at_all()
        warn_of_dangers(deployment(settings, fleet, tenants, machine or Machine()), log)
        begin_with(dispatcher.scheduler, fleet, settings.completion_weight)
        prober.start()
        watch.start()
        if leasing is not None:
            await leasing.start()

    async def stop() -> None:
        if leasing is not None:
            await leasing.stop()
        await prober.stop()
        await watch.stop()

    return from_settings(
        settings,
        name="router",
        port=settings.router_port,
        port_variable="ROUTER_PORT",
        app=Service(
            "router",
            api,
            log=log,
            drain=drain,
            headers=[(b"x-weir-level", b"0")],
            hot=hot,
            rng=rng,
        ),
        metrics=metrics_listener(registry, log, admin, console_app),
        checks=(checks_of(settings, tenants),),
        metrics_checks=inner_checks(
            settings.metrics_host, token=shared_token, allowed_hosts=settings.allowed_hosts, is_open=has_its_own_key
        ),
        registry=registry,
        log=log,
        drain=drain,
        start=start,
        stop=stop,
        upstream_connections=upstream_connections(settings),
        tls=settings.tls,
        reload=Reloading(settings, tenants, dispatcher, prober, metrics, log, connected).begin,
        rng=rng,
        inside=pipeline,
    )


def several_routers(
    settings: RouterSettings,
    dispatcher: Dispatcher,
    fleet: LeasedFleet,
    tenants: Tenants,
    log: Log,
    rng: Random,
    stores: UsageStores | None,
) -> Leasing:
    """What makes this router one of several."""
    if stores is None:
        from services.router.leases.store import ValkeyExchanges  # a client library that a lone router does not load

        stores = ValkeyExchanges(settings.exchange_url)

    def rate_of(tenant: str) -> Rate | None:
        known = tenants.get(tenant)
        return None if known is None else known.rate

    return Leasing(
        dispatcher, fleet, name=settings.own_name, clock_ms=unix_milliseconds, stores=stores, rate_of=rate_of,
        log=log, rng=rng,
    )  # fmt: skip


def loop_time() -> float:
    """The running event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()


def deployment(settings: RouterSettings, fleet: Fleet, tenants: Tenants, machine: Machine) -> Deployment:
    """What the start warns of, if it is dangerous."""
    posed = tenants.with_example_keys if isinstance(tenants, FileTenants) else []
    return Deployment(settings, current_slots(fleet.workers), posed, machine=machine)


def readiness(fleet: Fleet, lacking: list[str], *, named: bool) -> Readiness:
    """The body of /health/ready, which needs no key: workers by name in lab mode, as counts otherwise."""
    up = [worker.name for worker in fleet.workers if worker.live]
    down = [f"worker {worker.name}" for worker in fleet.workers if worker.name not in up]
    if not named:
        counts = [f"{len(down)} of {len(fleet.workers)} workers"] if down else []
        return Readiness(bool(up), {"workers": len(up), "degraded": counts + lacking})
    return Readiness(bool(up), {"workers": up, "degraded": down + lacking})


def checks_of(settings: RouterSettings, tenants: Tenants) -> HeadCheck:
    """The check of a request's head: with keys, a key before a large body; in lab mode, the Host of web pages."""
    if isinstance(tenants, FileTenants):
        return key_before_body(tenants)
    return PageCheck(settings.host, settings.allowed_hosts)


def upstream_connections(settings: RouterSettings) -> int:
    """The maximum number of connections to workers and retrieval in use at once."""
    to_workers = settings.max_inflight + len(settings.worker_specs()) * SPARE_CONNECTIONS
    return to_workers + settings.max_queue_size + settings.max_inflight


def tenants_of(settings: RouterSettings) -> Tenants:
    """The tenants of the file, or of lab mode. Raises ValueError listing every fault of the file."""
    if settings.tenants_file is None:
        return LabTenants(settings.max_lab_tenants, settings.lab_tenant_rps)
    return FileTenants(
        settings.tenants_file,
        settings.tenant_queue_size,
        settings.max_deadline_ms,
        queue_bytes=settings.max_queue_bytes / 4,
    )


def scheduler(settings: RouterSettings, tenants: Tenants, rng: Random) -> Scheduler:
    """The core with this router's bounds and classes. `unconfigured` is the spec of lab tenants, of equal weight."""
    classes = tenants.classes()
    bytes = float(settings.max_queue_bytes)
    own = QueueBounds(settings.tenant_queue_size, bytes=bytes / 4)
    chosen = SchedulerSettings(
        bounds=QueueBounds(settings.max_queue_size, bytes=bytes),
        unconfigured=TenantSpec("", own, class_name=classes[0].name),
        classes=classes,
        safety_margin=settings.admission_safety_margin,
        policies=settings.policies,
        several_routers=settings.several_routers,
    )
    return Scheduler(chosen, rng.random)
