"""One trace across real processes: governor, router, retrieval and worker tell a collector, and their spans fit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from tests.real.stack.stand import WORKER_SETTINGS, Part, Stand, chat, until
from tests.real.stack.test_governor import SHORT, client_of, governor_before, sent
from tests.real.stack.test_metrics import table
from tests.runtime.test_otel import Receiver, receiving
from tests.runtime.test_tracing import GOOD, SPAN, TRACE

Spans = dict[str, tuple[str, Span]]
"""By id: the service that told it, and the span."""


def told(receiver: Receiver, trace_id: str) -> Spans:
    """What came of one trace so far."""
    found: Spans = {}
    for _, _, request in list(receiver.requests):
        for of_resource in request.resource_spans:
            named = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                spans = [span for span in of_scope.spans if span.trace_id.hex() == trace_id]
                found |= {span.span_id.hex(): (named["service.name"], span) for span in spans}
    return found


def until_told(receiver: Receiver, trace_id: str, spans: int) -> Spans:
    until(lambda: len(told(receiver, trace_id)) >= spans, f"{spans} spans of the trace have come")
    return told(receiver, trace_id)


def tree(spans: Spans) -> set[tuple[str, str, str]]:
    """Who told which span, and below which one it is."""
    return {
        (service, span.name, spans[span.parent_span_id.hex()][1].name if span.parent_span_id.hex() in spans else "")
        for service, span in spans.values()
    }


@contextlib.contextmanager
def tracing(stand: Stand, receiver: Receiver) -> Iterator[tuple[Part, Part, Part]]:
    """A worker, retrieval and a router that export to this collector; the stand's own do not."""
    otel = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    worker = stand._part("traced-worker", "worker", {**WORKER_SETTINGS, "WORKER_NAME": "traced", **otel})
    retrieval = stand._part("traced-retrieval", "retrieval", {**stand.retrieval.settings, **otel})
    peers = {"WORKERS": worker.url, "RETRIEVAL_URL": retrieval.url}
    router = stand._part("traced-router", "router", {**stand.router.settings, **peers, **otel})
    parts = (router, retrieval, worker)
    for part in parts:
        part.spawn()
    try:
        for part in parts:
            until(part.ready, f"{part.name} is ready")
        until(lambda: router.degraded() == [], "the router lacks nothing")
        yield parts
    finally:
        for part in parts:
            part.terminate()
        for part in parts:
            assert part.exit_code() == 0


def test_a_question_is_one_trace_over_three_services(stand: Stand) -> None:
    with receiving() as receiver, tracing(stand, receiver) as (router, _, _):
        body = {"query": stand.question(), "max_tokens": 12}
        answer = stand.http.post(f"{router.url}/ask", json=body, headers={"traceparent": GOOD.decode()})
        assert answer.status_code == 200, answer.text
        spans = until_told(receiver, TRACE, 10)
        assert tree(spans) == {
            ("weir-router", "POST /ask", ""),
            ("weir-router", "admission", "POST /ask"),
            ("weir-router", "retrieval", "POST /ask"),
            ("weir-router", "queue", "POST /ask"),
            ("weir-router", "chat weir-sim", "POST /ask"),
            ("weir-retrieval", "POST /retrieve", "retrieval"),
            ("weir-worker", "POST /generate", "chat weir-sim"),
            ("weir-worker", "queue", "POST /generate"),
            ("weir-worker", "prefill", "POST /generate"),
            ("weir-worker", "decode", "POST /generate"),
        }
        (own,) = [span for service, span in spans.values() if span.name == "POST /ask"]
        assert own.parent_span_id.hex() == SPAN
        until(lambda: any(record.get("path") == "/ask" for record in router.records()), "the log has its line")
        assert [record["trace_id"] for record in router.records() if record.get("path") == "/ask"] == [TRACE]
        page = stand.http.get(f"http://127.0.0.1:{router.metrics_port}/metrics").text
        (counted,) = [one for one in text_string_to_metric_families(page) if one.name == "weir_trace_spans"]
        assert {"weir_trace_spans_total"} == table("Traces").keys()
        assert {sample.labels["result"] for sample in counted.samples} == {"exported", "dropped", "failed"}


def test_a_job_of_the_governor_begins_a_trace(stand: Stand) -> None:
    def asked(router: Part) -> list[dict[str, Any]]:
        return [record for record in router.records() if record.get("path") == "/v1/completions"]

    async def job(governor: Part) -> None:
        async with client_of(governor, "J_traced") as (client, _):
            assert (await sent(client, SHORT))["status"] == "done"

    with receiving() as receiver, tracing(stand, receiver) as (router, _, _):
        otel = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        with governor_before(stand, router, **otel) as governor:
            asyncio.run(job(governor))
        until(lambda: asked(router), "the log has its line, which is written after the answer")
        (line,) = asked(router)
        spans = until_told(receiver, line["trace_id"], 8)
    above = {(service, name): parent for service, name, parent in tree(spans)}
    assert above["weir-governor", "job"] == ""
    assert above["weir-router", "POST /v1/completions"] == "job"
    assert above["weir-worker", "POST /generate"] == "text_completion weir-sim"


def test_a_collector_that_is_gone_costs_no_request_and_no_exit(stand: Stand) -> None:
    nobody = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}

    async def many(router: Part) -> list[Any]:
        async with stand.client(router) as client:
            return await asyncio.gather(*(chat(client, 4, stream=bool(n % 2)) for n in range(40)))

    with stand.another_router("gone", **nobody) as router:
        assert all(one.served for one in asyncio.run(many(router)))
        until(lambda: router.metrics("weir_trace_spans_total", "result").get("failed", 0) > 0, "an export has failed")
        router.terminate()
        assert router.exit_code() == 0
    told = [record["event"] for record in router.records() if "trace export" in record["event"]]
    assert told == ["trace export failed"]
