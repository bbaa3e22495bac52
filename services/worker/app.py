"""The composition root: the parts of a worker are created and connected here only."""

from __future__ import annotations

import random
from collections.abc import Callable

from fastapi import FastAPI

from services.core.batcher import BatchFormer, Batching
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.health import add_health
from services.runtime.internal import inner_checks, is_health
from services.runtime.leaseroutes import LEASE
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.service import Service
from services.runtime.telemetry import new_registry
from services.worker import child, engine_wire
from services.worker.api import EXAMPLES, WorkerApi
from services.worker.batching import EngineLoop
from services.worker.config import WorkerSettings
from services.worker.engine import Engine
from services.worker.engine_executor import EngineExecutor, LocalExecutor
from services.worker.engines.faults import FaultPlan, Faults
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.engines.torch.spec import TorchSpec
from services.worker.faultsapp import metrics_listener
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.process import EngineProcess

RUNNING_SHARE_OF_GRACE = 0.9  # the rest is left for sending the last events


def build(
    settings: WorkerSettings,
    also: Callable[[EngineLoop, FastAPI], None] | None = None,
    *,
    rng: random.Random | None = None,
    log: Log | None = None,
) -> Process:
    """A worker that is ready to run. `also` adds routes in front of the same engine.

    `rng` drives every random choice, ids included. By default SIM_SEED seeds a generator, and the operating system
    makes the ids.
    """
    log = log or Log(settings.worker_name, settings.log_level)
    drain = Drain()
    registry = new_registry()
    metrics = WorkerMetrics(registry)
    chance = own_chance(settings) if rng is None else rng
    faults = sim_faults(settings, chance)
    loop = engine_loop(settings, make_executor(settings, chance, faults), metrics, log, chance)
    metrics.watch(
        model=settings.announced_model,
        slots=lambda: loop.executor.slots,
        inflight=lambda: loop.running,
        waiting=lambda: loop.waiting,
        kv_usage=lambda: loop.executor.kv_usage,
        memory=lambda: loop.executor.memory,
        lending=loop.lending,
    )
    routes = WorkerApi(
        loop,
        metrics,
        worker_name=settings.worker_name,
        model=settings.announced_model,
        infer_deadline_s=settings.http_timeout_s,
        faults=faults,
        leaving=lambda: drain.announced,
    )
    api = new_api("Weir worker", "Generates answers with an engine, in batches.", examples=EXAMPLES)
    add_health(api, settings.worker_name, routes.ready, drain)
    routes.add_to(api)
    if also is not None:
        also(loop, api)
    service = Service(settings.worker_name, api, log=log, drain=drain, rng=rng, quiet=[LEASE])
    drain.on_begin(lambda: loop.drain(settings.drain_timeout_s * RUNNING_SHARE_OF_GRACE))
    token = settings.shared_token
    return from_settings(
        settings,
        name=settings.worker_name,
        port=settings.worker_port,
        port_variable="WORKER_PORT",
        app=service,
        metrics=metrics_listener(
            registry,
            log,
            faults if settings.engine == "simulated" else None,
            host=settings.metrics_host,
            lab_network=settings.lab_network,
        ),
        registry=registry,
        log=log,
        drain=drain,
        checks=inner_checks(settings.host, token=token, allowed_hosts=settings.allowed_hosts, is_open=is_health),
        metrics_checks=inner_checks(settings.metrics_host, token=token, allowed_hosts=settings.allowed_hosts),
        start=loop.start,
        stop=loop.stop,
        rng=rng,
        inside=loop,
    )


def engine_loop(
    settings: WorkerSettings, executor: EngineExecutor, metrics: WorkerMetrics, log: Log, chance: random.Random
) -> EngineLoop:
    """The queue in front of an engine, and the loop that steps it."""
    scheduler: BatchFormer[Job] = BatchFormer(
        Batching(settings.batching),
        slots=settings.max_batch_size,
        queue_size=settings.worker_queue_size,
        window_s=settings.batch_timeout_ms / 1000,
    )
    return EngineLoop(
        executor,
        scheduler,
        metrics=metrics,
        log=log,
        chance=chance,
        stream_buffer_tokens=settings.stream_buffer_tokens,
        stall_s=settings.engine_stall_s,
    )


def make_executor(settings: WorkerSettings, chance: random.Random, faults: Faults) -> EngineExecutor:
    """The simulated engine runs in this process; an engine that computes gets a process of its own."""
    if settings.engine == "simulated":
        return LocalExecutor(simulated_engine(settings, chance, faults))
    return EngineProcess(torch_spec(settings), start_within_s=settings.engine_start_s)


def engine(settings: WorkerSettings) -> Engine:
    """The engine in this process, for callers that step it themselves: calibration and measurements."""
    chance = own_chance(settings)
    if settings.engine == "simulated":
        return simulated_engine(settings, chance, sim_faults(settings, chance))
    return child.make_engine(torch_spec(settings))


def simulated_engine(settings: WorkerSettings, chance: random.Random, faults: Faults) -> SimulatedEngine:
    latency = LatencyModel(
        step_ms=settings.sim_step_ms,
        per_sequence_ms=settings.sim_step_per_sequence_ms,
        prefill_ms_per_token=settings.sim_prefill_ms_per_token,
        jitter=settings.sim_jitter,
        time_scale=settings.sim_time_scale,
    )
    return SimulatedEngine(
        model=settings.announced_model,
        slots=settings.max_batch_size,
        kv_tokens=settings.sim_kv_tokens,
        context_tokens=settings.sim_context_tokens,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        latency=latency,
        chance=chance,
        faults=faults,
    )


def torch_spec(settings: WorkerSettings) -> engine_wire.Torch:
    """The torch engine's description, as it is sent to its process."""
    spec = TorchSpec(
        model_id=settings.model_id,
        revision=settings.model_revision,
        cache_dir=settings.model_cache_dir,
        device=settings.device,
        dtype=settings.dtype,
        slots=settings.max_batch_size,
        kv_tokens=settings.kv_tokens,
        context_tokens=settings.max_context_tokens,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        threads=settings.torch_threads,
        seed=own_chance(settings).getrandbits(64),
    )
    return engine_wire.Torch(spec)


def own_chance(settings: WorkerSettings) -> random.Random:
    """A generator seeded by SIM_SEED and the worker's name: the same at every start, different for each replica."""
    return random.Random(f"{settings.sim_seed} {settings.worker_name}")


def sim_faults(settings: WorkerSettings, chance: random.Random) -> Faults:
    plan = FaultPlan(
        slow_factor=settings.sim_slow_factor,
        hang_after_tokens=settings.sim_hang_after,
        die_after_answers=settings.sim_die_after,
        garbage_share=settings.sim_garbage,
        poison=settings.sim_poison,
    )
    return Faults(plan, chance=chance)
