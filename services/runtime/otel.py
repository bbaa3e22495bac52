"""Exports traces over OTLP/HTTP; the only module that imports the extra `otel`.

A trace is encoded where it ends, on the event loop: in a thread it cost 37 us a request more, since a thread finds the
objects cold in the processor's caches and competes for the interpreter lock. What is queued is bytes, and a thread
sends at most BATCH_REQUESTS at a time. Above QUEUE_REQUESTS traces are dropped and counted. Sending, with its repeats,
certificates and compression, is OpenTelemetry's; encoding is our own (`otlp`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.trace import TraceState
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from services.runtime.log import Log
from services.runtime.otlp import SpanEncoder, varint
from services.runtime.tracing import FinishedTrace

QUEUE_REQUESTS = 2048
BATCH_REQUESTS = 512
"""Of one message to the collector: about 2,000 spans and 640 kB, since many proxies take no more than 1 MB. Sending
takes about 2 ms a message and 2 us a request."""
EXPORT_INTERVAL_S = 1.0
SEND_TIMEOUT_S = 10.0
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
RESULTS = ("exported", "dropped", "failed")
RESOURCE_SPANS = b"\x0a"  # field 1 of ExportTraceServiceRequest
SCOPE_SPANS = b"\x12"  # field 2 of ResourceSpans

Encoded = tuple[int, bytes]
"""The spans of a request: their number, and as fields of a ScopeSpans message."""


class Sender(Protocol):
    """Sends ExportTraceServiceRequest messages to a collector."""

    def send(self, message: bytes) -> bool:
        """Whether the collector took it. It may repeat, and wait for up to SEND_TIMEOUT_S."""

    def close(self) -> None:
        """End a wait between attempts."""


class OverHttp:
    """OpenTelemetry's client for OTLP over HTTP, without its encoder."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self.exporter = exporter
        self._client = exporter._client  # its versions are pinned, and tests send through it

    def send(self, message: bytes) -> bool:
        return bool(self._client.export(message).success)

    def close(self) -> None:
        self.exporter.shutdown()


class Exporting(Collector):
    """A queue and its thread. Counts spans as exported, dropped and failed."""

    def __init__(
        self,
        sender: Sender,
        resource: Mapping[str, str],
        registry: CollectorRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        self.counts = dict.fromkeys(RESULTS, 0)  # of spans
        self._sender = sender
        self._log = log
        self._exporting = True
        self._resource = _resource(resource)
        self._scope = ScopeSpans(scope=InstrumentationScope(name="weir"), schema_url=SCHEMA_URL).SerializeToString()
        self._encoder = SpanEncoder()
        self._queue: deque[Encoded] = deque()
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
        try:
            state = _state(finished.state) if finished.state else ""
            encoded = self._encoder.spans(finished, state)
        except Exception:  # any fault of the encoder costs these spans only, not the request that they are of
            self.counts["failed"] += len(finished.spans)
            return
        self._queue.append((len(finished.spans), encoded))
        if len(self._queue) == BATCH_REQUESTS:
            self._wake.set()

    def close(self, within_s: float) -> None:
        """Export what is queued, for at most `within_s` seconds, and drop the rest."""
        self._closing = True
        self._wake.set()
        self._thread.join(within_s)
        self._over = True
        self._sender.close()

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
            succeeded = self._sent(batch)
            self.counts["exported" if succeeded else "failed"] += sum(spans for spans, _ in batch)
            self._log_change(succeeded)

    def _log_change(self, succeeded: bool) -> None:
        """Log when exporting begins or ceases to fail, not for each batch."""
        if succeeded is not self._exporting and self._log is not None:
            if succeeded:
                self._log.info("trace export recovered")
            else:
                self._log.warning("trace export failed")
        self._exporting = succeeded

    def _sent(self, batch: Sequence[Encoded]) -> bool:
        try:
            return self._sender.send(self._message([encoded for _, encoded in batch]))
        except Exception:  # any fault of the exporter costs these spans only
            return False

    def _message(self, spans: Sequence[bytes]) -> bytes:
        """An ExportTraceServiceRequest, joined once: copies of 300 kB cost page faults."""
        of_scope = len(self._scope) + sum(map(len, spans))
        scope = SCOPE_SPANS + varint(of_scope) + self._scope
        of_resource = len(self._resource) + len(scope) + of_scope - len(self._scope)
        return b"".join([RESOURCE_SPANS, varint(of_resource), self._resource, scope, *spans])


def _resource(attributes: Mapping[str, str]) -> bytes:
    pairs = [KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in attributes.items()]
    return bytes(ResourceSpans(resource=Resource(attributes=pairs), schema_url=SCHEMA_URL).SerializeToString())


def _state(header: bytes) -> str:
    """The valid members of a `tracestate`."""
    return str(TraceState.from_header([header.decode("ascii", "replace")]).to_header())


def over_http(
    endpoint: str, *, headers: Mapping[str, str], resource: Mapping[str, str], registry: CollectorRegistry, log: Log
) -> Exporting:
    """Export to a collector over OTLP/HTTP. OpenTelemetry's environment variables set certificates and compression."""
    own = logging.getLogger("opentelemetry")  # logs each failed attempt to stderr
    own.propagate, own.handlers = False, [logging.NullHandler()]
    url = endpoint.rstrip("/") + "/v1/traces"
    exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers), timeout=SEND_TIMEOUT_S)
    return Exporting(OverHttp(exporter), resource, registry, log)
