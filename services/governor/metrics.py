"""The governor's metrics: the original's five names, for existing dashboards, and its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.governor.gate import Gate
from services.governor.job import Ended
from services.runtime.telemetry import SECONDS_BUCKETS


class _OriginalMetrics(Collector):
    """Read from the gate at each scrape, so that metrics and replies agree."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterable[Metric]:
        status = self._gate.status
        yield GaugeMetricFamily("heptamini_backend_inflight", "running jobs", status.inflight)
        yield GaugeMetricFamily("heptamini_backend_cap", "largest number of running jobs", status.cap)
        yield GaugeMetricFamily(
            "heptamini_server_health", "1 while a slot is free and the governor is not draining", status.health
        )
        yield CounterMetricFamily("heptamini_executed", "started jobs", status.executed_total)
        yield CounterMetricFamily(
            "heptamini_yielded", "replies that told a client to retry later", status.yielded_total
        )


class GovernorMetrics:
    """The governor's own metrics; labelled children are created once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        jobs = Counter("weir_governor_jobs", "jobs that had a slot, by outcome", ["outcome"], registry=registry)
        self._jobs = {ended: jobs.labels(ended.value) for ended in Ended}
        self._seconds = Histogram(
            "weir_governor_job_seconds", "time that jobs held their slot", buckets=SECONDS_BUCKETS, registry=registry
        )
        self.refused_connections = Counter(
            "weir_governor_connections_refused", "connections rejected because too many were open", registry=registry
        )
        self.unread = Counter(
            "weir_governor_slow_readers",
            "connections closed because their peer did not read",
            registry=registry,
        )

    def ended(self, ended: Ended, seconds: float) -> None:
        """A job released its slot after `seconds`."""
        self._jobs[ended].inc()
        self._seconds.observe(seconds)

    def watch(self, gate: Gate, connections: Callable[[], int]) -> None:
        self._registry.register(_OriginalMetrics(gate))
        for name, help_text, read in (
            ("weir_governor_connections", "open connections", connections),
            (
                "weir_governor_deferred_clients",
                "clients that were told to retry later and have not yet returned",
                lambda: gate.waiting,
            ),
            (
                "weir_governor_held_bytes",
                "bytes reserved by payloads, names, incomplete lines and unread replies",
                lambda: gate.held_bytes,
            ),
        ):
            Gauge(name, help_text, registry=self._registry).set_function(read)
