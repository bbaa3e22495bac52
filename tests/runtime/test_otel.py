"""What is told is exported by OpenTelemetry, beside the loop; a collector that is slow, or gone, costs spans only."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from pydantic import ValidationError

from services.runtime import settings as settings_module
from services.runtime.exposition import Registry, page_of
from services.runtime.log import Log
from services.runtime.otel import BATCH_REQUESTS, QUEUE_REQUESTS, SCHEMA_URL, Exporting, OverHttp, Sender, over_http
from services.runtime.settings import ServiceSettings
from services.runtime.tracing import Trace, TraceContext, Tracer

GIVEN = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, b"vendor=1")
WITHIN_S = 20.0


def traced(sink: Exporting, given: TraceContext | None = GIVEN) -> Trace:
    """One request with a step."""
    trace = Tracer(sink).begin(given, 1.0)
    trace.step("queue", 1.0, 1.25).attributes = {"weir.level": 2}
    trace.end("POST /x", "server", 2.0, {"weir.outcome": "served"}, "late")
    return trace


class Lines:
    """A log, and what was written to it."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        self.log = Log("test", stream=self._stream)

    def read(self) -> str:
        self.log.close()
        return self._stream.getvalue().decode()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class Received(Sender):
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.closed = False

    def send(self, message: bytes) -> bool:
        self.requests.append(ExportTraceServiceRequest.FromString(message))
        return True

    def close(self) -> None:
        self.closed = True

    def spans(self) -> list[SentSpan]:
        """All spans of the only resource and scope of each request."""
        found: list[SentSpan] = []
        for request in self.requests:
            (of_resource,) = request.resource_spans
            (of_scope,) = of_resource.scope_spans
            assert of_scope.scope.name == "weir"
            assert of_scope.schema_url == of_resource.schema_url == SCHEMA_URL
            found += of_scope.spans
        return found


def test_what_was_told_is_what_is_exported() -> None:
    kept = Received()
    sink = Exporting(kept, {"service.name": "weir-test"})
    trace = traced(sink)
    sink.close(WITHIN_S)
    own, queue = kept.spans()
    assert (own.name, own.kind) == ("POST /x", SentSpan.SPAN_KIND_SERVER)
    assert (own.status.code, own.status.message) == (Status.STATUS_CODE_ERROR, "late")
    assert queue.HasField("status")
    assert queue.status.code == Status.STATUS_CODE_UNSET
    assert (own.trace_id.hex(), own.parent_span_id.hex()) == (GIVEN.trace_id, GIVEN.span_id)
    assert (own.flags, queue.flags) == (0x300, 0x100), "the parent of the first is remote"
    assert (own.span_id.hex(), queue.parent_span_id) == (trace.span_id, own.span_id)
    assert own.trace_state == queue.trace_state == "vendor=1"
    assert {pair.key: pair.value.int_value for pair in queue.attributes} == {"weir.level": 2}
    assert own.end_time_unix_nano - own.start_time_unix_nano == 1_000_000_000
    (request,) = kept.requests
    (named,) = request.resource_spans[0].resource.attributes
    assert (named.key, named.value.string_value) == ("service.name", "weir-test")
    assert sink.counts == {"exported": 2, "dropped": 0, "failed": 0}
    assert kept.closed


def test_a_request_that_came_without_a_trace_is_a_root() -> None:
    kept = Received()
    sink = Exporting(kept, {})
    traced(sink, None)
    sink.close(WITHIN_S)
    own = kept.spans()[0]
    assert own.parent_span_id == b""
    assert own.flags == 0x100


def test_a_state_that_the_standard_does_not_allow_is_left_out() -> None:
    kept = Received()
    sink = Exporting(kept, {})
    traced(sink, GIVEN._replace(state=b"vendor=1,NOT ALLOWED"))
    sink.close(WITHIN_S)
    assert [span.trace_state for span in kept.spans()] == [""] * 2


class Stuck(Sender):
    """One whose collector says nothing until it is let go."""

    def __init__(self) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def send(self, message: bytes) -> bool:
        (of_resource,) = ExportTraceServiceRequest.FromString(message).resource_spans
        self.batches.append(len(of_resource.scope_spans[0].spans))
        self.reached.set()
        self.release.wait(WITHIN_S)
        return True

    def close(self) -> None:
        self.release.set()


def test_behind_a_collector_that_says_nothing_the_queue_is_bounded_and_the_rest_is_dropped_and_counted() -> None:
    stuck, registry = Stuck(), Registry()
    sink = Exporting(stuck, {}, registry)
    traced(sink)
    assert stuck.reached.wait(WITHIN_S)
    for _ in range(QUEUE_REQUESTS + 100):
        traced(sink)
    assert sink.counts["dropped"] == 2 * 100
    assert b'weir_trace_spans_total{result="dropped"} 200.0' in page_of(registry)
    stuck.release.set()
    sink.close(WITHIN_S)
    assert sink.counts["exported"] == 2 * (QUEUE_REQUESTS + 1)
    assert max(stuck.batches) <= 2 * BATCH_REQUESTS


def test_who_leaves_waits_for_no_collector_longer_than_it_was_told_to() -> None:
    stuck = Stuck()
    sink = Exporting(stuck, {})
    for _ in range(BATCH_REQUESTS * 3):
        traced(sink)
    assert stuck.reached.wait(WITHIN_S)
    sink.close(0.01)
    sink._thread.join(WITHIN_S)
    assert not sink._thread.is_alive()
    assert len(stuck.batches) == 1, "what was left is not sent after all"
    traced(sink)
    assert sink.counts["dropped"] >= 2


class Broken(Sender):
    def send(self, message: bytes) -> bool:
        raise ValueError("a fault of the exporter's")

    def close(self) -> None:
        pass


def test_a_fault_of_the_exporter_costs_the_spans_and_nothing_else() -> None:
    sink = Exporting(Broken(), {})
    traced(sink)
    sink.close(WITHIN_S)
    assert sink.counts == {"exported": 0, "dropped": 0, "failed": 2}


def test_a_trace_that_cannot_be_encoded_costs_its_spans_and_nothing_else() -> None:
    kept = Received()
    sink = Exporting(kept, {})
    trace = Tracer(sink).begin(GIVEN, 1.0)
    trace.end("POST /x", "server", 2.0, {"weir.odd": ["no", "attribute"]})  # type: ignore[dict-item]  # on purpose
    traced(sink)
    sink.close(WITHIN_S)
    assert sink.counts == {"exported": 2, "dropped": 0, "failed": 1}
    assert len(kept.spans()) == 2


# A collector over HTTP


class Receiver(ThreadingHTTPServer):
    """What speaks OTLP over HTTP, as a collector does."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.status = status
        super().__init__(("127.0.0.1", 0), Receiving)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Receiving(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        told = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, told, ExportTraceServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    with Receiver(status) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


@pytest.mark.sockets
def test_a_collector_gets_what_the_protocol_says() -> None:
    lines = Lines()
    with receiving() as receiver:
        sink = over_http(
            receiver.url + "/",
            headers={"x-key": "secret"},
            resource={"service.name": "weir-x"},
            registry=Registry(),
            log=lines.log,
        )
        assert isinstance(sink._sender, OverHttp)
        assert isinstance(sink._sender.exporter, OTLPSpanExporter)
        traced(sink)
        sink.close(WITHIN_S)
    ((path, headers, request),) = receiver.requests
    assert (path, headers["x-key"], headers["content-type"]) == ("/v1/traces", "secret", "application/x-protobuf")
    (of_resource,) = request.resource_spans
    named = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
    assert named == {"service.name": "weir-x"}
    own, queue = of_resource.scope_spans[0].spans
    assert (own.trace_id.hex(), own.parent_span_id.hex(), queue.parent_span_id) == (
        GIVEN.trace_id, GIVEN.span_id, own.span_id,
    )  # fmt: skip
    assert sink.counts["exported"] == 2
    assert lines.read() == ""


@pytest.mark.sockets
def test_what_a_collector_refuses_is_counted_as_failed_and_logged_when_it_begins_and_when_it_is_over() -> None:
    lines = Lines()
    with receiving(400) as receiver:
        sink = over_http(receiver.url, headers={}, resource={}, registry=Registry(), log=lines.log)
        for batch in range(4):
            receiver.status = 400 if batch < 3 else 200
            traced(sink)
            sink._wake.set()
            until(lambda: sum(sink.counts.values()) == 2 * (batch + 1), "the batch was sent")  # noqa: B023
        sink.close(WITHIN_S)
    assert sink.counts == {"exported": 2, "dropped": 0, "failed": 6}
    told = [json.loads(line) for line in lines.read().splitlines()]
    assert [(line["level"], line["event"]) for line in told] == [
        ("WARNING", "trace export failed"), ("INFO", "trace export recovered"),
    ]  # fmt: skip


# Settings


def test_headers_for_the_collector_are_names_and_values() -> None:
    settings = ServiceSettings(_env_file=None, otel_exporter_otlp_headers="Authorization=Basic a=b, x-team = weir,,")
    assert settings.otlp_headers == {"authorization": "Basic a=b", "x-team": "weir"}
    assert "Basic" not in repr(settings)


def test_who_asks_for_traces_without_the_extra_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServiceSettings(_env_file=None, otel_traces_exporter="otlp").otel_traces_exporter == "otlp"
    monkeypatch.setattr(settings_module, "installed", lambda: False)
    with pytest.raises(ValidationError, match="make otel"):
        ServiceSettings(_env_file=None, otel_traces_exporter="otlp")
