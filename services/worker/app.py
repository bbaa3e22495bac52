"""The composition root: every part of a worker is made here, and nowhere else."""

from __future__ import annotations

import random

from services.core.batcher import BatchFormer, Batching
from services.runtime.drain import Drain
from services.runtime.http import Service
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.telemetry import metrics_app, new_registry
from services.worker.api import Api
from services.worker.batching import EngineLoop
from services.worker.config import WorkerSettings
from services.worker.engine import Engine
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics

RUNNING_SHARE_OF_GRACE = 0.9  # the rest is for sending the last events


def build(settings: WorkerSettings) -> Process:
    """A worker, ready to be run."""
    log = Log(settings.worker_name, settings.log_level)
    drain = Drain()
    registry = new_registry()
    metrics = WorkerMetrics(registry)
    loop = engine_loop(settings, metrics, log)
    metrics.watch(
        model=loop.engine.model,
        slots=loop.engine.slots,
        inflight=lambda: loop.running,
        waiting=lambda: loop.waiting,
        kv_usage=lambda: loop.engine.kv_usage,
    )
    api = Api(loop, metrics, worker_name=settings.worker_name, infer_deadline_s=settings.http_timeout_s)
    service = Service(settings.worker_name, api.routes(), ready=api.ready, log=log, drain=drain)
    drain.on_begin(lambda: loop.drain(settings.drain_timeout_s * RUNNING_SHARE_OF_GRACE))

    async def start() -> None:
        loop.start()

    return from_settings(
        settings,
        name=settings.worker_name,
        port=settings.worker_port,
        port_variable="WORKER_PORT",
        app=service,
        metrics=metrics_app(registry),
        log=log,
        drain=drain,
        start=start,
        stop=loop.stop,
    )


def engine_loop(settings: WorkerSettings, metrics: WorkerMetrics, log: Log) -> EngineLoop:
    """The engine, its line, and the loop that turns it."""
    chance = random.Random(settings.sim_seed)
    engine = simulated_engine(settings, chance)
    former: BatchFormer[Job] = BatchFormer(
        Batching(settings.batching),
        slots=engine.slots,
        queue_size=settings.worker_queue_size,
        window_s=settings.batch_timeout_ms / 1000,
    )
    return EngineLoop(
        engine, former, metrics=metrics, log=log, chance=chance, stream_buffer_tokens=settings.stream_buffer_tokens
    )


def simulated_engine(settings: WorkerSettings, chance: random.Random) -> Engine:
    """The lab's default engine."""
    latency = LatencyModel(
        step_ms=settings.sim_step_ms,
        per_sequence_ms=settings.sim_step_per_sequence_ms,
        prefill_ms_per_token=settings.sim_prefill_ms_per_token,
        jitter=settings.sim_jitter,
        time_scale=settings.sim_time_scale,
    )
    return SimulatedEngine(
        model=settings.model_name,
        slots=settings.max_batch_size,
        kv_tokens=settings.sim_kv_tokens,
        latency=latency,
        chance=chance,
    )
