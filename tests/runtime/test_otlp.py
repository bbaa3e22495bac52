"""Every span is encoded as OpenTelemetry's own encoder does it."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from services.runtime import otlp
from services.runtime.otlp import SpanEncoder, varint
from services.runtime.tracing import Attribute, CommonAttributes, FinishedTrace, Kind, Span

TRACE = "0af7651916cd43dd8448eb211c80319c"
KINDS: dict[Kind, SpanKind] = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
VALUES: tuple[Attribute, ...] = (
    "", "served", "é\u2028", "x" * 127, "x" * 128, "x" * 70_000, True, False, 0, 1, -1, 127, 128, 16_383, 16_384,
    2**21, 2**53 + 1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.0, 30_000.0, 1e-300, float("inf"), (), ("stop",), ("a", "b"),
)  # fmt: skip


def by_opentelemetry(finished: FinishedTrace, state: str) -> list[SentSpan]:
    return list(
        encode_spans([_span(finished, state, span, at) for at, span in enumerate(finished.spans)])
        .resource_spans[0]
        .scope_spans[0]
        .spans
    )


def _span(finished: FinishedTrace, state: str, span: Span, at: int) -> ReadableSpan:
    def context(span_id: str, remote: bool = False) -> SpanContext:
        known = TraceState.from_header([state])
        return SpanContext(int(finished.trace_id, 16), int(span_id, 16), remote, TraceFlags(1), known)

    return ReadableSpan(
        span.name,
        context=context(span.span_id),
        parent=context(span.parent_id, at == 0) if span.parent_id else None,
        attributes=span.all_attributes(),
        kind=KINDS[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=finished.unix_ns + round((span.began_at - finished.at) * 1e9),
        end_time=finished.unix_ns + round((span.ended_at - finished.at) * 1e9),
    )


def ours(encoder: SpanEncoder, finished: FinishedTrace, state: str) -> list[SentSpan]:
    return list(ScopeSpans.FromString(encoder.spans(finished, state)).spans)


def trace_of(rng: Random, common: list[CommonAttributes]) -> FinishedTrace:
    """A trace of up to five spans with attributes by chance."""
    ids = [f"{rng.getrandbits(64) or 1:016x}" for _ in range(rng.randint(1, 5))]
    spans = []
    for at, span_id in enumerate(ids):
        parent = rng.choice(["", "b7ad6b7169203331"]) if at == 0 else ids[0]
        began = 10 + rng.random()
        attributes = {rng.choice("abcdef") * 3: rng.choice(VALUES) for _ in range(rng.randint(0, 6))}
        spans.append(
            Span(
                rng.choice(["queue", "POST /x", "chat é"]), rng.choice(list(KINDS)), span_id, parent, began,
                began + rng.random(), attributes, rng.choice([None, *common]), rng.choice(["", "late", "é" * 80]),
            )
        )  # fmt: skip
    return FinishedTrace(TRACE, b"", 10.0, 1_700_000_000_123_456_789, tuple(spans))


def test_any_trace_is_encoded_as_by_opentelemetry_also_from_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_CACHED", 20)  # so that what is remembered is dropped sometimes, too
    rng, encoder = Random(7), SpanEncoder()
    common = [
        CommonAttributes({"weir.level": 1, "weir.on": True}),
        CommonAttributes({"http.route": "/x", "ratio": 0.5}),
    ]
    for _ in range(300):
        finished, state = trace_of(rng, common), rng.choice(["", "vendor=1", "a=1,b=2"])
        assert ours(encoder, finished, state) == by_opentelemetry(finished, state)
    assert len(encoder._known) <= 20
    assert len(encoder._names) <= 20


def test_equal_numbers_of_other_types_stay_what_they_are() -> None:
    encoder = SpanEncoder()
    for value in (1, True, 1.0, 0, False, 0.0):
        spans = (Span("x", "internal", "b7ad6b7169203331", "", 1.0, 2.0, {"weir.x": value}),)
        finished = FinishedTrace(TRACE, b"", 1.0, 5, spans)
        assert ours(encoder, finished, "") == by_opentelemetry(finished, ""), value


def test_a_number_that_the_protocol_cannot_hold_is_left_out_and_a_broken_text_is_replaced() -> None:
    attributes: dict[str, Attribute] = {"big": 2**63, "small": -(2**63) - 1, "text": "a\ud800b", "kept": 1}
    spans = (Span("x", "internal", "b7ad6b7169203331", "", 1.0, 2.0, attributes),)
    (span,) = ours(SpanEncoder(), FinishedTrace(TRACE, b"", 1.0, 5, spans), "")
    assert [(pair.key, pair.value.string_value) for pair in span.attributes] == [("text", "a?b"), ("kept", "")]


def test_what_hardly_comes_twice_is_not_remembered() -> None:
    encoder = SpanEncoder()
    for number in range(3):
        spans = (Span("x", "internal", "b7ad6b7169203331", "", 1.0, 2.0, {"weir.id": f"{number}", "weir.level": 0}),)
        encoder.spans(FinishedTrace(TRACE, b"", 1.0, 5, spans))
    assert [name for name, _, _ in encoder._known] == ["weir.level"]


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16_383, 16_384, 2**32, 2**64 - 1])
def test_a_varint_has_seven_bits_a_byte_lowest_first(number: int) -> None:
    encoded = varint(number)
    assert sum((byte & 0x7F) << 7 * at for at, byte in enumerate(encoded)) == number
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]
