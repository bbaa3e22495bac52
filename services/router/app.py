"""The router, put together: the one place where real things are plugged into one another."""

from __future__ import annotations

import asyncio
from random import Random

from services.core.limit import InflightCap
from services.router.api import routes
from services.router.config import RouterSettings
from services.router.dispatcher import Dispatcher
from services.router.metrics import Holdings, RouterMetrics
from services.router.pipeline import Pipeline
from services.router.retrieval import RetrievalClient
from services.router.tenants import DEMO, OTHER, LabTenants
from services.router.workers import Prober, WorkerPool, connect
from services.runtime.drain import Drain
from services.runtime.http import Readiness, Service
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.telemetry import metrics_app, new_registry

RETRIEVAL_LOOK_S = 1.0
EAGER = ("/ask", "/v1/chat/completions", "/v1/completions")  # refused, they end where they began


class RetrievalWatch:
    """What retrieval lacks, asked at leisure, so that health never waits for another service."""

    def __init__(self, client: RetrievalClient) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self.lacking = ["retrieval"]

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client.close()

    async def _watch(self) -> None:
        while True:
            self.lacking = await self._client.lacking()
            await asyncio.sleep(RETRIEVAL_LOOK_S / 8 if self.lacking else RETRIEVAL_LOOK_S)


def build(settings: RouterSettings) -> Process:
    """A router that listens when the process is run."""
    log = Log("router", settings.log_level)
    drain = Drain()
    registry = new_registry()
    cap = InflightCap(settings.max_inflight)
    pool = WorkerPool([connect(spec, settings.max_inflight) for spec in settings.worker_specs()])
    prober = Prober(pool, settings.probe_interval_s, log)
    retrieval = RetrievalClient(settings.retrieval_url, max_connections=settings.max_inflight + 64)
    watch = RetrievalWatch(retrieval)
    metrics = RouterMetrics(registry)
    for tenant in (DEMO, OTHER):
        metrics.expect(tenant)
    registry.register(Holdings(cap, pool.workers))
    dispatcher = Dispatcher(cap, pool, prober, metrics, Random())
    pipeline = Pipeline(
        settings=settings,
        tenants=LabTenants(settings.max_lab_tenants),
        dispatcher=dispatcher,
        retrieval=retrieval,
        metrics=metrics,
        drain=drain,
    )

    def ready() -> Readiness:
        up = [worker.name for worker in pool.workers if worker.healthy and not worker.draining]
        degraded = [f"worker {worker.name}" for worker in pool.workers if worker.name not in up]
        return Readiness(bool(up), {"workers": up, "degraded": degraded + watch.lacking})

    async def start() -> None:
        await asyncio.gather(*(prober.probe(worker) for worker in pool.workers))
        prober.start()
        watch.start()
        log.info("lab mode: tenants are believed by name; keep this port on loopback", tenants_file=None)

    async def stop() -> None:
        await prober.stop()
        await watch.stop()

    return from_settings(
        settings,
        name="router",
        port=settings.router_port,
        port_variable="ROUTER_PORT",
        app=Service(
            "router",
            routes(pipeline),
            ready=ready,
            log=log,
            drain=drain,
            headers=[(b"x-weir-level", b"0")],
            eager=EAGER,
        ),
        metrics=metrics_app(registry),
        log=log,
        drain=drain,
        start=start,
        stop=stop,
    )
