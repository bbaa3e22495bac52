"""What is held now, read from the ledgers when Prometheus asks: nothing to keep in step, and nothing to forget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.router.deciding.dispatcher import Dispatcher
from services.router.workers.worker import Worker

WORKER_GAUGES: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
    ("weir_worker_inflight", "Requests the router holds places for at a worker.", lambda worker: worker.inflight),
    ("weir_worker_slots", "Slots the worker announced, or the limit learned of it.", lambda worker: worker.slots),
    ("weir_worker_healthy", "1 when the worker answered its last probe and is not ejected.", lambda w: int(w.healthy)),
    ("weir_worker_work_tokens", "Outstanding work at a worker, in token-equivalents.", lambda w: w.work_tokens),
)


class Holdings(Collector):
    """Gauges over the dispatcher's and the fleet's state. Tenants that `labels` does not know are summed as `other`."""

    def __init__(self, dispatcher: Dispatcher, label_of: Callable[[str], str]) -> None:
        self._dispatcher = dispatcher
        self._label_of = label_of

    def collect(self) -> Iterable[Metric]:
        cap = self._dispatcher.cap
        yield GaugeMetricFamily("weir_inflight", "Requests dispatched to workers.", value=cap.inflight)
        yield GaugeMetricFamily("weir_inflight_cap", "MAX_INFLIGHT.", value=cap.cap)
        yield self._levels()
        yield self._policy()
        yield from self._queues()
        for name, text, value in WORKER_GAUGES:
            family = GaugeMetricFamily(name, text, labels=["worker"])
            for worker_name, amount in self._by_name(value).items():
                family.add_metric([worker_name], amount)
            yield family

    def _by_name(self, value: Callable[[Worker], float]) -> dict[str, float]:
        """One that is leaving and one that has taken its name count together."""
        fleet, found = self._dispatcher.fleet, dict[str, float]()
        for worker in (*fleet.workers, *fleet.leaving):
            found[worker.name] = found.get(worker.name, 0.0) + value(worker)
        return found

    def _levels(self) -> Metric:
        family = GaugeMetricFamily(
            "weir_level", "The degradation level of a class: 0 is full quality.", labels=["pool", "class"]
        )
        scheduler = self._dispatcher.scheduler
        for pool, pool_stats in scheduler.pools.items():
            for name, class_stats in pool_stats.classes.items():
                family.add_metric([pool, name], scheduler.level(class_stats, name))
        return family

    def _policy(self) -> Metric:
        family = GaugeMetricFamily("weir_policy", "1 while a mechanism is on, 0 when it is off.", labels=["mechanism"])
        for mechanism, on in asdict(self._dispatcher.scheduler.policies).items():
            family.add_metric([mechanism], on)
        return family

    def _queues(self) -> Iterator[Metric]:
        waiting: dict[str, tuple[int, float]] = {}
        for tenant in self._dispatcher.scheduler.drr.tenants.values():
            label = self._label_of(tenant.id)
            requests, cost = waiting.get(label, (0, 0.0))
            waiting[label] = (requests + tenant.usage.requests, cost + tenant.usage.cost_tokens)
        depth = GaugeMetricFamily("weir_queue_depth", "Requests that wait in the router.", labels=["tenant"])
        work = GaugeMetricFamily("weir_queue_cost_tokens", "Their estimated cost, in tokens.", labels=["tenant"])
        for label, (requests, cost) in waiting.items():
            depth.add_metric([label], requests)
            work.add_metric([label], cost)
        yield depth
        yield work
