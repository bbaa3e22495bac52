"""Every metric of a worker; labelled children are created once and kept.

Gauges are computed when Prometheus scrapes, so they cost the steps nothing. The `vllm:` gauges have the names that
inference gateways already scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.core.outcome import Outcome
from services.runtime.telemetry import SECONDS_BUCKETS
from services.worker.engine import Memory, Step
from services.worker.lending import Lending

BATCH_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
WASTE_REASONS = ("client_gone", "deadline_exceeded", "write_stall", "draining", "internal_error", "lost")


class WorkerMetrics:
    """The metrics that the engine loop updates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.step_seconds = Histogram(
            "weir_worker_step_seconds", "Duration of an engine step", buckets=SECONDS_BUCKETS, registry=registry
        )
        self.batch_size = Histogram(
            "weir_worker_batch_size", "Sequences in an engine step", buckets=BATCH_BUCKETS, registry=registry
        )
        self.queue_delay_seconds = Histogram(
            "weir_worker_queue_delay_seconds", "Queue wait for a slot", buckets=SECONDS_BUCKETS, registry=registry
        )
        self.prompt_tokens = Counter(
            "weir_worker_prompt_tokens_total", "Prompt tokens of requests that got a slot", registry=registry
        )
        self.prefill_tokens = Counter("weir_worker_prefill_tokens_total", "Prompt tokens processed", registry=registry)
        self.completion_tokens = Counter("weir_worker_completion_tokens_total", "Tokens generated", registry=registry)
        requests = Counter("weir_worker_requests_total", "Requests, by outcome", ["outcome"], registry=registry)
        self.requests = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        wasted = Counter(
            "weir_wasted_seconds_total",
            "Slot time spent on answers that reached no client",
            ["reason"],
            registry=registry,
        )
        self.wasted_seconds = {reason: wasted.labels(reason) for reason in WASTE_REASONS}
        tokens = Counter(
            "weir_worker_wasted_tokens_total", "Tokens generated for answers that reached no client", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.wasted_tokens = {reason: tokens.labels(reason) for reason in WASTE_REASONS}
        self.engine_restarts = Counter(
            "weir_worker_engine_restarts_total",
            "Engines replaced because they ended or did not finish a step in time",
            registry=registry,
        )

    def stepped(self, step: Step) -> None:
        self.step_seconds.observe(step.duration_s)
        self.batch_size.observe(step.batch_size)
        self.prefill_tokens.inc(step.prefill_tokens)
        self.completion_tokens.inc(len(step.tokens))

    def wasted(self, reason: str, held_s: float, tokens: int) -> None:
        """Count slot time and tokens that were spent on an answer that was not delivered."""
        self.wasted_seconds[reason].inc(held_s)
        self.wasted_tokens[reason].inc(tokens)

    def watch(
        self,
        *,
        model: str,
        slots: Callable[[], float],
        inflight: Callable[[], float],
        waiting: Callable[[], float],
        kv_usage: Callable[[], float],
        memory: Callable[[], Memory],
        lending: Lending,
    ) -> None:
        self._gauge("weir_worker_slots", "Largest number of running sequences", slots)
        self._gauge("weir_worker_inflight", "Running sequences", inflight)
        self._gauge("weir_worker_queue_depth", "Queued requests", waiting)
        self._gauge("weir_worker_kv_usage_ratio", "Share of the KV cache in use, 0 to 1", kv_usage)
        self._gauge("weir_worker_kv_bytes", "Size of the KV cache", lambda: memory().kv_bytes)
        self._gauge(
            "weir_worker_gpu_bytes", "Memory of the GPU that the engine has reserved", lambda: memory().gpu_bytes
        )
        self.registry.register(LeaseCollector(lending))
        for name, meaning, read in (
            ("vllm:num_requests_running", "Running sequences", inflight),
            ("vllm:num_requests_waiting", "Queued requests", waiting),
            ("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", kv_usage),
        ):
            gauge = Gauge(name, meaning, ["model_name"], registry=self.registry)
            gauge.labels(model).set_function(read)

    def _gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(read)


class LeaseCollector(Collector):
    """What is lent to several routers, read at each scrape. Each router has its own part by worker."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending

    def collect(self) -> Iterator[Metric]:
        leases = self._lending.book.leases()
        slots = sum([lease.may for lease in leases])
        yield GaugeMetricFamily("weir_worker_lease_routers", "Routers with a lease here", value=len(leases))
        yield GaugeMetricFamily("weir_worker_lease_slots", "Slots that routers have been lent", value=slots)
        yield CounterMetricFamily(
            "weir_worker_lease_moves", "Slots lent to a router that had not had them", value=self._lending.book.moves
        )
