"""Metrics of every HTTP service: what was refused before a handler, connections, incoming bytes, lost log lines."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.runtime.errors import WeirError
from services.runtime.instruments import Counter
from services.runtime.log import Log

CODES = (
    "invalid_request", "headers_too_large", "url_too_long", "request_too_large", "unsupported_encoding",
    "request_timeout", "yield", "no_capacity", "unsupported_transfer_encoding", "invalid_api_key",
    "misdirected_request", "forbidden",
)  # fmt: skip
"""Codes of the guard, of connections and of head checks. `yield`: one connection too many. `no_capacity`: too many
incoming bytes. `invalid_api_key`: a large body without a known key, or a missing internal token. `misdirected_request`:
a foreign Host. `forbidden`: a foreign Origin.
"""
SOURCE_REASONS = ("source_connections", "source_incoming_bytes")


class EdgeMetrics:
    def __init__(self, registry: CollectorRegistry, log: Log) -> None:
        self._registry = registry
        self._log = log
        refusals = Counter(
            "weir_http_rejections",
            "Connections and requests rejected before a handler received them, by error code.",
            ["code"],
            registry=registry,
        )
        self._refusals = {code: refusals.labels(code) for code in CODES}
        by_source = Counter(
            "weir_http_source_rejections",
            "Rejections because one client address had reached its share of a limit.",
            ["bound"],
            registry=registry,
        )
        self._by_source = {reason: by_source.labels(reason) for reason in SOURCE_REASONS}

    def refused(self, error: WeirError, id: str) -> None:
        """Count and log one refusal. `id` is the request id that the client received."""
        code = error.code if error.code in self._refusals else "invalid_request"
        self._refusals[code].inc()
        of_source = self._by_source.get(error.details.reason or "")
        if of_source is not None:
            of_source.inc()
        self._log.info("rejected before routing", id=id, status=error.status, code=error.code, why=error.message)

    def watch(self, connections: Callable[[], float], incoming_bytes: Callable[[], float]) -> None:
        gauge = Gauge("weir_http_connections", "Open client connections.", registry=self._registry)
        gauge.set_function(connections)
        held = Gauge(
            "weir_http_incoming_bytes",
            "Bytes of received requests that no handler has taken yet.",
            registry=self._registry,
        )
        held.set_function(incoming_bytes)


class LostLines(Collector):
    """The number of log lines that could not be written, read at each scrape."""

    def __init__(self, registry: CollectorRegistry, log: Log) -> None:
        self._log = log
        registry.register(self)

    def collect(self) -> list[CounterMetricFamily]:
        lost = CounterMetricFamily("weir_log_dropped_lines", "Log lines dropped because they could not be written.")
        lost.add_metric([], self._log.dropped_lines)
        return [lost]
