"""Exports traces with OpenTelemetry's own exporter; the only module that imports the extra `otel`.

A thread sends at most BATCH_REQUESTS at a time, since encoding holds the interpreter lock. Above QUEUE_REQUESTS traces
are dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.runtime.log import Log
from services.runtime.tracing import FinishedTrace, Span

QUEUE_REQUESTS = 2048
BATCH_REQUESTS = 32
EXPORT_INTERVAL_S = 1.0
SEND_TIMEOUT_S = 10.0
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
SCOPE = InstrumentationScope("weir", schema_url=SCHEMA_URL)
RESULTS = ("exported", "dropped", "failed")


class Exporting(Collector):
    """A queue and its thread, over an OpenTelemetry `exporter`. Counts spans as exported, dropped and failed."""

    def __init__(
        self,
        exporter: SpanExporter,
        resource: Mapping[str, str],
        registry: CollectorRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        self.counts = dict.fromkeys(RESULTS, 0)  # of spans
        self._exporter = exporter
        self._log = log
        self._exporting = True
        self._resource = Resource(dict(resource), SCHEMA_URL)
        self._queue: deque[FinishedTrace] = deque()
        self._wake = threading.Event()
        self._closing = self._over = False
        if registry is not None:
            registry.register(self)
        self._thread = threading.Thread(target=self._export, name="trace-exporter", daemon=True)
        self._thread.start()

    def take(self, finished: FinishedTrace) -> None:
        if len(self._queue) >= QUEUE_REQUESTS or self._closing:
            self.counts["dropped"] += len(finished.spans)
            return
        self._queue.append(finished)
        if len(self._queue) == BATCH_REQUESTS:
            self._wake.set()

    def close(self, within_s: float) -> None:
        """Export what is queued, for at most `within_s` seconds, and drop the rest."""
        self._closing = True
        self._wake.set()
        self._thread.join(within_s)
        self._over = True
        self._exporter.shutdown()  # ends a wait between its attempts

    def collect(self) -> list[CounterMetricFamily]:
        family = CounterMetricFamily("weir_trace_spans", "Trace spans, by result.", labels=["result"])
        for result, count in self.counts.items():
            family.add_metric([result], count)
        return [family]

    def _export(self) -> None:
        while not self._closing:
            self._wake.wait(EXPORT_INTERVAL_S)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._queue and not self._over:
            batch = [self._queue.popleft() for _ in range(min(BATCH_REQUESTS, len(self._queue)))]
            spans = [span for finished in batch for span in self._spans(finished)]
            succeeded = self._sent(spans)
            self.counts["exported" if succeeded else "failed"] += len(spans)
            self._log_change(succeeded)

    def _log_change(self, succeeded: bool) -> None:
        """Log when exporting begins or ceases to fail, not for each batch."""
        if succeeded is not self._exporting and self._log is not None:
            if succeeded:
                self._log.info("trace export recovered")
            else:
                self._log.warning("trace export failed")
        self._exporting = succeeded

    def _sent(self, spans: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # any fault of the exporter costs these spans only
            return False

    def _spans(self, finished: FinishedTrace) -> Iterator[ReadableSpan]:
        state = TraceState.from_header([finished.state.decode("ascii", "replace")])
        for at, span in enumerate(finished.spans):
            yield ReadableSpan(
                span.name,
                context=_context(finished, span.span_id, state),
                parent=_context(finished, span.parent_id, state, remote=at == 0) if span.parent_id else None,
                resource=self._resource,
                attributes=span.attributes,
                kind=KINDS[span.kind],
                status=_status(span),
                start_time=finished.unix(span.began_at),
                end_time=finished.unix(span.ended_at),
                instrumentation_scope=SCOPE,
            )


def _context(finished: FinishedTrace, span_id: str, state: TraceState, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(finished.trace_id, 16), int(span_id, 16), remote, TraceFlags(finished.flags), state)


def _status(span: Span) -> Status:
    return Status(StatusCode.ERROR, span.error) if span.error else Status()


def over_http(
    endpoint: str, *, headers: Mapping[str, str], resource: Mapping[str, str], registry: CollectorRegistry, log: Log
) -> Exporting:
    """Export to a collector over OTLP/HTTP. OpenTelemetry's environment variables set certificates and compression."""
    own = logging.getLogger("opentelemetry")  # logs each failed attempt to stderr
    own.propagate, own.handlers = False, [logging.NullHandler()]
    url = endpoint.rstrip("/") + "/v1/traces"
    exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=SEND_TIMEOUT_S)
    return Exporting(exporter, resource, registry, log)
