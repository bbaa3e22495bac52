"""Every Prometheus metric of retrieval. Labelled children are created once and kept.

Labels are closed sets and never a tenant: the router, which knows the configured tenants, counts by tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.contracts.search import Source
from services.runtime.telemetry import SECONDS_BUCKETS

BATCH_BUCKETS = (1, 2, 3, 4, 6, 8)
CACHE_RESULTS = ("hit", "stale", "miss", "invalid", "error", "skipped", "stored", "not_stored")
SEMANTIC_RESULTS = ("hit", "stale", "miss", "stored", "not_stored")
FALLBACK_RESULTS = ("hit", "miss")  # whether there was a fallback when a search fell short
SHORTFALL_REASONS = (
    "budget_spent", "postgres_down", "postgres_busy", "search_failed", "embedder_full", "embedder_busy",
    "embedder_failed",
)  # fmt: skip
DEPENDENCIES = ("postgres", "redis")


class RetrievalMetrics:
    """Counters and histograms that search, cache and embedder update; `watch` adds the gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        seconds = self._seconds("weir_retrieval_seconds", "Retrieval time, by source of the result", ["source"])
        self.retrieval_seconds = {source: seconds.labels(source) for source in get_args(Source)}
        cache = Counter(
            "weir_cache_total", "Cache look-ups and writes, by result", ["cache", "result"], registry=registry
        )
        self.cache = {result: cache.labels("exact", result) for result in CACHE_RESULTS}
        self.similar = {result: cache.labels("semantic", result) for result in SEMANTIC_RESULTS}
        self.fallback = {result: cache.labels("stale", result) for result in FALLBACK_RESULTS}
        shortfalls = Counter(
            "weir_retrieval_shortfalls_total",
            "Retrievals without a fresh result, by reason",
            ["reason"],
            registry=registry,
        )
        self.shortfalls = {reason: shortfalls.labels(reason) for reason in SHORTFALL_REASONS}
        self.joined = Counter(
            "weir_retrieval_coalesced_total", "Retrievals that shared the run of an identical one", registry=registry
        )
        self.search_seconds = self._seconds("weir_retrieval_search_seconds", "Time of a successful database search")
        self.embed_seconds = self._seconds("weir_embed_seconds", "Time of one pass of the embedder")
        self.embed_batch = Histogram(
            "weir_embed_batch_size", "Texts in one pass of the embedder", buckets=BATCH_BUCKETS, registry=registry
        )

    def _seconds(self, name: str, meaning: str, labels: list[str] | None = None) -> Histogram:
        return Histogram(name, meaning, labels or [], buckets=SECONDS_BUCKETS, registry=self.registry)

    def watch(
        self,
        *,
        embedder_waiting: Callable[[], float],
        connections: Callable[[], float],
        connections_in_use: Callable[[], float],
        unembedded_chunks: Callable[[], float],
        up: dict[str, Callable[[], float]],
    ) -> None:
        """Register the gauges that are read at each scrape."""
        self._gauge("weir_embed_queue_depth", "Texts waiting to be embedded", embedder_waiting)
        self._gauge("weir_postgres_connections", "Open database connections", connections)
        self._gauge("weir_postgres_connections_in_use", "Database connections running a query", connections_in_use)
        self._gauge("weir_chunks_without_embedding", "Chunks without a vector of the current model", unembedded_chunks)
        gauge = Gauge("weir_dependency_up", "1 while the dependency answers", ["dependency"], registry=self.registry)
        for dependency in DEPENDENCIES:
            gauge.labels(dependency).set_function(up[dependency])

    def _gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(read)
