"""The context of a trace is read as W3C's standard says, passed on, and stands in the log; steps are told once."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from services.core.outcome import Outcome
from services.runtime.errors import Refused
from services.runtime.http import Exchange, become_task
from services.runtime.tracing import FinishedTrace, Sampling, Trace, Tracer, read, start_trace
from tests.runtime.rig import ask, post, serving
from tests.virtual import run

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


class Kept:
    """Who takes what is told, and keeps it."""

    def __init__(self) -> None:
        self.told: list[FinishedTrace] = []

    def take(self, told: FinishedTrace) -> None:
        for span in told.spans:
            span.attributes, span.common = span.all_attributes(), None
        self.told.append(told)

    def close(self, within_s: float) -> None:
        pass


def headers(*parents: bytes, state: tuple[bytes, ...] = ()) -> list[tuple[bytes, bytes]]:
    return [
        (b"host", b"x"),
        *((b"traceparent", parent) for parent in parents),
        *((b"tracestate", value) for value in state),
    ]


def test_a_context_is_read() -> None:
    assert read(headers(GOOD, state=(b"a=1", b"b=2"))) == (TRACE, SPAN, 1, b"a=1,b=2")
    assert read(headers(GOOD[:-2] + b"00")) == (TRACE, SPAN, 0, b"")


def test_of_a_later_version_what_is_known_is_read() -> None:
    assert read(headers(b"cc" + GOOD[2:] + b"-and-more")) == (TRACE, SPAN, 1, b"")
    assert read(headers(GOOD[:-2] + b"ff")) == (TRACE, SPAN, 1, b"")  # flags that nobody knows yet


@pytest.mark.parametrize(
    "malformed",
    [
        b"", b"00", GOOD[:-1], GOOD + b"0", GOOD + b"-more", GOOD.upper(), b"ff" + GOOD[2:], GOOD.replace(b"-", b"_"),
        f"00-{'0' * 32}-{SPAN}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(), b"zz" + GOOD[2:],
        GOOD.replace(b"b7", b"\xff\xfe"), b"00-" + b"a" * 8000,
    ],
)  # fmt: skip
def test_what_is_malformed_is_as_if_it_had_not_come(malformed: bytes) -> None:
    assert read(headers(malformed)) is None
    assert read(headers(malformed, GOOD)) is None, "two contexts are none"


@pytest.mark.parametrize("state", [b"a" * 513, b"a=\x00", b""])
def test_a_state_that_cannot_be_passed_on_is_left_out_and_the_context_stays(state: bytes) -> None:
    given = read(headers(GOOD, state=(state,)))
    assert given is not None
    assert (given.trace_id, given.state) == (TRACE, b"")


def test_while_tracing_is_off_a_context_goes_on_as_it_came() -> None:
    trace = start_trace(None, headers(GOOD, state=(b"a=1",)), "POST", 0.0)
    assert trace is not None
    assert not trace.recording
    assert trace.onward() == ((b"traceparent", GOOD), (b"tracestate", b"a=1"))
    assert start_trace(None, headers(), "POST", 0.0) is None


def test_a_look_begins_no_trace_but_may_be_in_one() -> None:
    tracer = Tracer(Kept())
    assert start_trace(tracer, headers(), "GET", 0.0) is None
    assert start_trace(tracer, headers(b"nonsense"), "GET", 0.0) is None
    assert start_trace(tracer, headers(GOOD), "GET", 0.0) is not None
    assert start_trace(tracer, headers(), "POST", 0.0) is not None


@pytest.mark.parametrize(
    ("sampling", "share", "alone", "sampled_caller", "other_caller"),
    [
        ("always_on", 1, True, True, True),
        ("always_off", 1, False, False, False),
        ("traceidratio", 1, True, True, True),
        ("traceidratio", 0, False, False, False),
        ("parentbased_always_on", 1, True, True, False),
        ("parentbased_always_off", 1, False, True, False),
        ("parentbased_traceidratio", 0, False, True, False),
        ("parentbased_traceidratio", 1, True, True, False),
    ],
)
def test_who_is_traced(sampling: Sampling, share: float, alone: bool, sampled_caller: bool, other_caller: bool) -> None:
    tracer = Tracer(Kept(), sampling, share)
    assert tracer.begin(None, 0.0).recording is alone
    assert tracer.begin(read(headers(GOOD)), 0.0).recording is sampled_caller
    assert tracer.begin(read(headers(GOOD[:-2] + b"00")), 0.0).recording is other_caller


def test_a_share_of_the_traces_is_sampled_and_every_service_samples_the_same() -> None:
    here, there = Tracer(Kept(), "traceidratio", 0.25), Tracer(Kept(), "traceidratio", 0.25)
    begun = [here.begin(None, 0.0) for _ in range(4000)]
    again = [there.begin(read([trace.onward()[0]]), 0.0) for trace in begun]
    assert [trace.recording for trace in begun] == [trace.recording for trace in again]
    assert 0.2 < sum(trace.recording for trace in begun) / len(begun) < 0.3


def test_what_is_not_sampled_is_still_one_trace_on_the_way() -> None:
    trace = Tracer(Kept(), "always_off").begin(None, 0.0)
    (line,) = trace.onward()
    assert line[1].endswith(b"-00")
    further = Tracer(Kept(), "parentbased_always_on").begin(read([line]), 0.0)
    assert not further.recording
    assert further.trace_id == trace.trace_id


def test_steps_are_told_once_with_the_request_above_them() -> None:
    kept = Kept()
    trace = Tracer(kept).begin(read(headers(GOOD, state=(b"a=1",))), 10.0)
    waited = trace.step("queue", 10.1, 10.2)
    called = trace.step("chat m", 10.2, kind="client")
    assert trace.onward(called)[0][1] == f"00-{TRACE}-{called.span_id}-01".encode()
    trace.end("POST /x", "server", 11.0, {"weir.outcome": "served"})
    trace.end("POST /x", "server", 12.0, {})
    (told,) = kept.told
    own, *steps = told.spans
    assert (told.trace_id, told.state, own.parent_id, own.ended_at) == (TRACE, b"a=1", SPAN, 11.0)
    assert steps == [waited, called]
    assert {step.parent_id for step in steps} == {own.span_id} != {SPAN}
    assert called.ended_at == 11.0, "a step that was left open ends with the request"
    assert len({own.span_id, waited.span_id, called.span_id}) == 3
    assert told.at == 10.0


# Over a real socket


async def serve(exchange: Exchange) -> None:
    await become_task()
    exchange.log["tenant"] = "acme"
    await exchange.reply(200, b"{}")


async def refuse(exchange: Exchange) -> None:
    raise Refused(Outcome.UPSTREAM_FAILED, "no")


async def told_by(tracer: Tracer | None, *requests: bytes) -> list[dict[str, Any]]:
    """The log's lines of these requests."""
    stream = io.BytesIO()
    async with serving({("POST", "/x"): serve, ("POST", "/no"): refuse, ("GET", "/x"): serve}, stream=stream) as built:
        built.listener.app.tracer = tracer  # type: ignore[attr-defined]
        for request in requests:
            await ask(built.bound_port, request)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "request"]


def test_the_log_has_the_trace_id_that_a_client_sent_and_none_where_there_is_none() -> None:
    traced = post("/x", b"", f"traceparent: {GOOD.decode()}")
    lines = run(told_by(None, traced, post("/x", b""), post("/x", b"", "traceparent: nonsense")))
    assert [line.get("trace_id") for line in lines] == [TRACE, None, None]


def test_a_service_that_traces_tells_its_own_span_and_logs_its_trace() -> None:
    kept = Kept()
    (line, refused, stray) = run(told_by(Tracer(kept), post("/x", b""), post("/no", b""), post("/a/b", b"")))
    spans = [told.spans[0] for told in kept.told]
    assert [(span.name, span.kind, span.error) for span in spans] == [
        ("POST /x", "server", ""), ("POST /no", "server", "upstream_failed"), ("POST", "server", ""),
    ]  # fmt: skip
    assert [told.trace_id for told in kept.told] == [line["trace_id"], refused["trace_id"], stray["trace_id"]]
    assert spans[0].attributes | {} == {
        "http.request.method": "POST", "url.scheme": "http", "http.route": "/x", "http.response.status_code": 200,
        "weir.id": line["id"], "weir.tenant": "acme",
    }  # fmt: skip
    assert "http.route" not in spans[2].attributes, "what a client invents is no route"


def test_a_request_that_is_not_sampled_has_its_trace_id_in_the_log_and_no_span() -> None:
    kept = Kept()
    (line,) = run(told_by(Tracer(kept, "always_off"), post("/x", b"")))
    assert len(line["trace_id"]) == 32
    assert kept.told == []


def test_a_trace_says_what_it_is() -> None:
    assert repr(Trace(TRACE, SPAN, 1, b"")) == f"<Trace {TRACE}, 0 steps, passed on>"
