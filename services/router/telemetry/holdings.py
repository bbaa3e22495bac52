"""The gauges: a projection of a snapshot taken at each scrape, so nothing has to be kept in step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.core.policies import Policies
from services.core.snapshot import PoolSnapshot, waiting_by
from services.router.deciding.dispatcher import Dispatcher
from services.router.telemetry.snapshot import WorkerSnapshot, take
from services.router.upstreams.enginepage import EngineReport

WORKER_GAUGES: tuple[tuple[str, str, Callable[[WorkerSnapshot], float]], ...] = (
    (
        "weir_worker_inflight",
        "Slots and look-ahead places that the router holds at a worker.",
        lambda worker: worker.inflight,
    ),
    (
        "weir_worker_slots",
        "Slots announced by a worker, or the concurrency limit learned for it.",
        lambda worker: worker.slots,
    ),
    ("weir_worker_healthy", "1 when the worker answered its last probe and is not ejected.", lambda w: int(w.healthy)),
    ("weir_worker_work_tokens", "Outstanding work at a worker, in token-equivalents.", lambda w: w.work_tokens),
)
ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineReport], float | None]], ...] = (
    (
        "weir_worker_engine_running",
        "Requests in the batch, by the server's own metrics.",
        lambda r: r.running,
    ),
    (
        "weir_worker_engine_waiting",
        "Requests in the server's own queue, by its metrics.",
        lambda r: r.waiting,
    ),
    (
        "weir_worker_engine_kv_share",
        "Used share of the KV cache, by the server's metrics.",
        lambda r: r.kv_share,
    ),
)
"""Only of workers that report."""


class Holdings(Collector):
    """Gauges of the scheduler and the fleet. `label_of` maps a tenant to its label, unknown ones to `other`."""

    def __init__(self, dispatcher: Dispatcher, label_of: Callable[[str], str]) -> None:
        self._dispatcher = dispatcher
        self._label_of = label_of

    def collect(self) -> Iterable[Metric]:
        seen = take(_now(), self._dispatcher, {})
        yield GaugeMetricFamily("weir_inflight", "Requests dispatched to workers.", value=seen.inflight)
        yield GaugeMetricFamily("weir_inflight_cap", "MAX_INFLIGHT.", value=seen.inflight_cap)
        yield _levels(seen.scheduler.pools)
        yield _policy(seen.scheduler.policies)
        yield from _queues(waiting_by(self._dispatcher.scheduler, self._label_of))
        for name, text, value in WORKER_GAUGES:
            family = GaugeMetricFamily(name, text, labels=["worker"])
            for worker_name, amount in _by_name(seen.workers, value).items():
                family.add_metric([worker_name], amount)
            yield family
        for name, text, value_of in ENGINE_GAUGES:
            yield _engines(seen.workers, name, text, value_of)


def _engines(
    workers: Iterable[WorkerSnapshot], name: str, text: str, value_of: Callable[[EngineReport], float | None]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["worker"])
    found = {worker.name: value_of(worker.report) for worker in workers if worker.report is not None}
    for worker_name, amount in found.items():
        if amount is not None:
            family.add_metric([worker_name], amount)
    return family


def _now() -> float:
    """The loop's time, or 0 outside of a loop: no gauge depends on it."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


def _by_name(workers: Iterable[WorkerSnapshot], value: Callable[[WorkerSnapshot], float]) -> dict[str, float]:
    """Values by worker name: a leaving worker and its successor of the same name are summed."""
    found: dict[str, float] = {}
    for worker in workers:
        found[worker.name] = found.get(worker.name, 0.0) + value(worker)
    return found


def _levels(pools: Iterable[PoolSnapshot]) -> Metric:
    family = GaugeMetricFamily(
        "weir_degradation_level", "The degradation level of a class: 0 is full quality.", labels=["pool", "class"]
    )
    for pool in pools:
        for of in pool.classes:
            family.add_metric([pool.name, of.name], of.level)
    return family


def _policy(policies: Policies) -> Metric:
    family = GaugeMetricFamily(
        "weir_mechanism_enabled", "1 while a mechanism is on, 0 when it is off.", labels=["mechanism"]
    )
    for mechanism, on in asdict(policies).items():
        family.add_metric([mechanism], on)
    return family


def _queues(waiting: Mapping[str, tuple[int, float]]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("weir_queue_depth", "Queued requests.", labels=["tenant"])
    work = GaugeMetricFamily(
        "weir_queue_cost_tokens", "Estimated cost of queued requests, in tokens.", labels=["tenant"]
    )
    for label, (requests, cost) in waiting.items():
        depth.add_metric([label], requests)
        work.add_metric([label], cost)
    yield depth
    yield work
