"""The spans of a request, called only for requests with a trace (docs/operations/observability.md lists them).

Times come from the request's record; only a call of another service writes its span at the start, since the callee
needs its id. An attempt follows OpenTelemetry's conventions for generative AI and carries its tokens; no other span
does, so that sums count them once. Prompts, passages and answers are never attributes.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from services.core.outcome import Outcome
from services.router.parsing.parsed import Format
from services.router.rag.retrieval import Found
from services.router.request import InferenceRequest
from services.runtime.errors import Refused
from services.runtime.tracing import FAILURES, Attribute, CommonAttributes, Headers, Span, Trace

OPERATIONS = {Format.CHAT: "chat", Format.COMPLETIONS: "text_completion", Format.ASK: "chat"}
PROVIDERS = {"openai": "openai"}  # the provider name of a kind of worker; others are "weir"


def admission(trace: Trace, request: InferenceRequest, refusal: Refused | None, now: float) -> None:
    if not trace.recording:
        return
    decision = ("degrade" if request.level else "admit") if refusal is None else str(refusal.outcome)
    attributes: dict[str, Attribute] = {
        "weir.predicted_wait_ms": round(request.predicted_wait_s * 1000, 3),
        "weir.prompt_tokens_estimated": request.prompt_tokens + request.context_tokens,
    }  # fmt: skip
    if request.granted_limit is not None:
        attributes["weir.granted_tokens"] = request.granted_limit
    if refusal is not None and refusal.details.reason is not None:
        attributes["weir.reason"] = refusal.details.reason
    common = _decided(decision, request.level)
    trace.step("admission", request.arrived_at, now, attributes=attributes, common=common)


def calling(trace: Trace | None, name: str, now: float) -> tuple[Headers, Span | None]:
    """The headers for a call to another service, and its span if the trace is recorded."""
    if trace is None:
        return (), None
    span = trace.step(name, now, kind="client") if trace.recording else None
    return trace.onward(span), span


def found(span: Span, passages: Found, now: float) -> None:
    span.ended_at = now
    span.attributes = {"weir.source": passages.source, "weir.passages": len(passages.passages)}
    if passages.reason is not None:
        span.attributes["weir.reason"] = passages.reason


def attempt(request: InferenceRequest, now: float) -> Headers:
    """Begin the span of an attempt; returns its headers."""
    parsed, worker = request.parsed, request.worker
    operation = OPERATIONS[parsed.format]
    headers, span = calling(request.trace, f"{operation} {request.model}", now)
    if span is None or worker is None:
        return headers
    spec = worker.spec
    span.common = _called(operation, spec.kind, request.model, spec.url, worker.name)
    attributes = span.attributes
    attributes |= {
        "weir.attempt": request.attempts,
        "weir.remaining_ms": round((request.work_until - now) * 1000, 3),
    }
    if request.limit_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.limit_tokens
    if parsed.temperature is not None:
        attributes["gen_ai.request.temperature"] = parsed.temperature
    if parsed.top_p is not None:
        attributes["gen_ai.request.top_p"] = parsed.top_p
    if parsed.seed is not None:
        attributes["gen_ai.request.seed"] = parsed.seed
    return headers


@lru_cache(maxsize=256)
def _called(operation: str, kind: str, model: str, url: str, worker: str) -> CommonAttributes:
    """What all attempts at a worker share."""
    address = urlsplit(url)
    attributes: dict[str, Attribute | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDERS.get(kind, "weir"),
        "gen_ai.request.model": model,
        "server.address": address.hostname,
        "server.port": address.port,
        "weir.worker": worker,
    }
    return CommonAttributes({name: value for name, value in attributes.items() if value is not None})


@lru_cache(maxsize=64)
def _decided(decision: str, level: int) -> CommonAttributes:
    return CommonAttributes({"weir.decision": decision, "weir.level": level})


@lru_cache(maxsize=64)
def _queued(class_name: str, ready_at_once: bool) -> CommonAttributes:
    return CommonAttributes({"weir.class": class_name, "weir.ready_at_once": ready_at_once})


def failed(trace: Trace, why: str, now: float) -> None:
    """End the span of a failed attempt; there may be another."""
    span = _under_way(trace)
    if span is not None:
        span.ended_at, span.error = now, why
        span.attributes["error.type"] = why


def settled(trace: Trace, request: InferenceRequest, outcome: Outcome, now: float) -> None:
    """Write the remaining spans when the request has ended."""
    if not trace.recording:
        return
    own = trace.attributes
    own["weir.deadline_ms"] = round(request.deadline_ms, 3)
    if not request.admitted:
        return
    own["weir.level"], own["gen_ai.request.model"] = request.level, request.model
    if cuts := request.cuts:
        own["weir.degraded"] = ",".join(cuts)
    common = _queued(request.flow.node.name, not request.ready_at)
    queue = trace.step("queue", request.queued_at, request.started_at or now, common=common)
    if not request.started_at and outcome is not Outcome.CLIENT_GONE:
        queue.error = str(outcome)
    if first_at := request.first_output_at:
        trace.step("stream", first_at, now, attributes={"weir.pieces": request.pieces})
    span = _under_way(trace)
    if span is not None:
        _ended(span, request, outcome, now)


def _ended(span: Span, request: InferenceRequest, outcome: Outcome, now: float) -> None:
    span.ended_at = now
    if outcome in FAILURES:
        span.error = span.attributes["error.type"] = str(outcome)
    end = request.end
    if end is not None:
        attributes = span.attributes
        attributes["gen_ai.response.finish_reasons"] = (end.finish_reason,)
        attributes["gen_ai.usage.input_tokens"] = end.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = end.completion_tokens


def _under_way(trace: Trace) -> Span | None:
    """The newest call that has not ended."""
    for span in reversed(trace.spans):
        if span.kind == "client" and not span.ended_at:
            return span
    return None
