"""Traces: how long each part of a request takes, across services (docs/operations/observability.md).

The context travels in `traceparent` and `tracestate` (W3C Trace Context); invalid headers are ignored, as the standard
asks. With tracing off, the default, the context is passed on and its trace id logged. With tracing on, a sampled
request has a `Trace` of `Span`s, which goes to a bounded queue at the end.

Steps are recorded by hand from known times, since context managers and framework instrumentation cost more than a
request. The service where a trace begins samples it by its id; a received context decides by its flag. A GET starts no
trace. Only `otel` imports OpenTelemetry.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from services.core.outcome import Ending, Outcome
from services.runtime.clock import unix_nanoseconds

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from services.runtime.log import Log
    from services.runtime.settings import ServiceSettings

Attribute = str | int | float | bool | tuple[str, ...]
Headers = tuple[tuple[bytes, bytes], ...]
Kind = Literal["internal", "server", "client"]
Sampling = Literal[
    "always_on", "always_off", "traceidratio",
    "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
]  # fmt: skip

SAMPLED = 1
MAX_STATE_BYTES = 512
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x20-\x7e]*)?")
_STATE = re.compile(rb"[\x20-\x7e\t]{1,%d}" % MAX_STATE_BYTES)
FAILURES = {outcome.value for outcome in Outcome if outcome.ending is Ending.FAILED} - {Outcome.CLIENT_GONE.value}
NUMBERS = (bool, int, float)
CLIENT_LEFT = 499  # logged, and never sent


class TraceContext(NamedTuple):
    """The context that a request came with. Ids are lower-case hex digits."""

    trace_id: str
    span_id: str
    flags: int
    state: bytes


def read(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """The context in these headers; None if there is none, several, or an invalid one."""
    parents = [value for name, value in headers if name == b"traceparent"]
    found = _TRACEPARENT.fullmatch(parents[0].strip()) if len(parents) == 1 else None
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    trace_id, span_id = found[2].decode("ascii"), found[3].decode("ascii")
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = b",".join(value.strip() for name, value in headers if name == b"tracestate")
    return TraceContext(trace_id, span_id, int(found[4], 16) & SAMPLED, state if _STATE.fullmatch(state) else b"")


class CommonAttributes:
    """Attributes that many spans have in common, in one object, so that they are encoded once."""

    __slots__ = ("attributes", "encoded")

    def __init__(self, attributes: Mapping[str, Attribute]) -> None:
        self.attributes = attributes
        self.encoded = b""
        """Set by the exporter."""


class Span(msgspec.Struct, gc=False):
    """One step. Times are the loop's, in seconds; `error` is empty for success.

    Its attributes are `attributes` and those of `common`; none is in both.
    """

    name: str
    kind: Kind
    span_id: str
    parent_id: str
    began_at: float
    ended_at: float = 0.0
    attributes: dict[str, Attribute] = {}
    common: CommonAttributes | None = None
    error: str = ""

    def all_attributes(self) -> dict[str, Attribute]:
        return {**self.common.attributes, **self.attributes} if self.common is not None else dict(self.attributes)


class Trace:
    """One request's place in a trace. If `recording`, steps are recorded; otherwise the context is only passed on.

    `span_id` is this service's own span, or the caller's while nothing is recorded; calls to other services are its
    children.
    """

    __slots__ = ("_began_at", "_began_ns", "_new_id", "_sink", "attributes", "flags", "parent_id", "recording",
                 "span_id", "spans", "state", "trace_id")  # fmt: skip

    def __init__(
        self, trace_id: str, span_id: str, flags: int, state: bytes, *,
        parent_id: str = "", at: float = 0.0, sink: TraceExporter | None = None, new_id: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.flags = flags
        self.state = state
        self.recording = sink is not None
        self.spans: list[Span] = []
        self.attributes: dict[str, Attribute] = {}  # of the request's own span, beside its log fields
        self._began_at = at
        self._began_ns = unix_nanoseconds() if sink is not None else 0
        self._sink = sink
        self._new_id = new_id

    def step(
        self, name: str, began_at: float, ended_at: float = 0.0, kind: Kind = "internal",
        attributes: dict[str, Attribute] | None = None, common: CommonAttributes | None = None,
    ) -> Span:  # fmt: skip
        """Record a step. Without an end it ends with the request."""
        span = Span(name, kind, self._new_id(), self.span_id, began_at, ended_at, attributes or {}, common)
        self.spans.append(span)
        return span

    def onward(self, span: Span | None = None) -> Headers:
        """The headers of a call to another service: the same trace, below `span` or this service's own span."""
        parent_id = self.span_id if span is None else span.span_id
        line = f"00-{self.trace_id}-{parent_id}-{self.flags:02x}".encode("ascii")
        return ((b"traceparent", line), (b"tracestate", self.state)) if self.state else ((b"traceparent", line),)

    def end(
        self, name: str, kind: Kind, ended_at: float, attributes: dict[str, Attribute], error: str = "",
        common: CommonAttributes | None = None,
    ) -> None:  # fmt: skip
        """End the request: pass its own span and its steps to the exporter. A second call does nothing."""
        sink, self._sink = self._sink, None
        if sink is None:
            return
        own = Span(name, kind, self.span_id, self.parent_id, self._began_at, ended_at, attributes, common, error)
        for span in self.spans:
            span.ended_at = span.ended_at or ended_at
        sink.take(FinishedTrace(self.trace_id, self.state, self._began_at, self._began_ns, (own, *self.spans)))

    def __repr__(self) -> str:
        return f"<Trace {self.trace_id}, {len(self.spans)} steps, {'recording' if self.recording else 'passed on'}>"


class FinishedTrace(NamedTuple):
    """A request's spans, its own first. `at` (loop time, seconds) and `unix_ns` are the same moment."""

    trace_id: str
    state: bytes
    at: float
    unix_ns: int
    spans: tuple[Span, ...]


class TraceExporter(Protocol):
    def take(self, finished: FinishedTrace) -> None:
        """Queue a trace or drop it, without waiting."""

    def close(self, within_s: float) -> None:
        """Export what is queued, for at most `within_s` seconds."""


class Tracer:
    """Starts the traces of a service. A service with tracing off has None instead."""

    def __init__(
        self,
        sink: TraceExporter,
        sampling: Sampling = "parentbased_always_on",
        share: float = 1.0,
        rng: Random | None = None,
    ) -> None:
        self.sink = sink
        self._by_parent = sampling.startswith("parentbased_")
        kind = sampling.removeprefix("parentbased_")
        self._below = 2**64 * {"always_on": 1.0, "always_off": 0.0}.get(kind, share)
        self._random = Random() if rng is None else rng

    def begin(self, context: TraceContext | None, at: float) -> Trace:
        """A request's place in its caller's trace, or in a new one. `at` is loop time in seconds."""
        trace_id = "%032x" % (self._random.getrandbits(128) or 1) if context is None else context.trace_id
        parent_id, state = ("", b"") if context is None else (context.span_id, context.state)
        if self._sampled(context, trace_id):
            new_id = self._new_id
            return Trace(trace_id, new_id(), SAMPLED, state, parent_id=parent_id, at=at, sink=self.sink, new_id=new_id)
        return Trace(trace_id, parent_id or self._new_id(), 0, state)

    def _sampled(self, context: TraceContext | None, trace_id: str) -> bool:
        if context is not None and self._by_parent:
            return bool(context.flags)
        return int(trace_id[16:], 16) < self._below

    def _new_id(self) -> str:
        return "%016x" % (self._random.getrandbits(64) or 1)


def start_trace(tracer: Tracer | None, headers: Sequence[tuple[bytes, bytes]], method: str, at: float) -> Trace | None:
    """A request's place in a trace; None if it has none."""
    context = read(headers)
    if tracer is not None and (context is not None or method != "GET"):
        return tracer.begin(context, at)
    return None if context is None else Trace(context.trace_id, context.span_id, context.flags, context.state)


def end_of_request(
    trace: Trace, method: str, scheme: str, route: str, status: int, ended_at: float, fields: Mapping[str, object]
) -> None:
    """End a service's own span. HTTP attributes have OpenTelemetry's names, log fields are `weir.*`."""
    if not trace.recording:
        return
    attributes = trace.attributes
    for name, value in fields.items():
        if value is not None:
            attributes[f"weir.{name}"] = value if isinstance(value, NUMBERS) else str(value)
    outcome = str(fields.get("outcome", ""))
    failed = status >= 500 or outcome in FAILURES
    name = method if route == "other" else f"{method} {route}"
    error = (outcome or str(status)) if failed else ""
    trace.end(name, "server", ended_at, attributes, error, _answered(method, scheme, route, status))


@lru_cache(maxsize=256)
def _answered(method: str, scheme: str, route: str, status: int) -> CommonAttributes:
    attributes: dict[str, Attribute] = {"http.request.method": method, "url.scheme": scheme}
    if route != "other":
        attributes["http.route"] = route
    if status not in (0, CLIENT_LEFT):
        attributes["http.response.status_code"] = status
    return CommonAttributes(attributes)


def installed() -> bool:
    """Whether the extra `otel` is installed, without importing it."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def tracer_of(
    settings: ServiceSettings,
    service: str,
    instance: str,
    registry: CollectorRegistry,
    log: Log,
    rng: Random | None = None,
) -> Tracer | None:
    """The tracer that the settings ask for; None, without an import of OpenTelemetry, if tracing is off."""
    if settings.otel_traces_exporter == "none":
        return None
    from services.runtime.otel import over_http

    name = settings.otel_service_name or f"weir-{service}"
    sink = over_http(
        settings.otel_exporter_otlp_endpoint,
        headers=settings.otlp_headers,
        resource={"service.name": name, "service.namespace": "weir", "service.instance.id": instance},
        registry=registry,
        log=log,
    )
    return Tracer(sink, settings.otel_traces_sampler, settings.otel_traces_sampler_arg, rng)
