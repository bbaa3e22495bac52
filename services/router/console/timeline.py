"""The timeline of one request for the operator: its events, and the numbers that decided them.

It is built from the request's own record on demand and contains nothing of the prompt or the answer. The first token of
a plain answer is as its worker reported it, or estimated from the token counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from services.contracts.console import Moment, Numbers, Progress, RequestLife
from services.core.outcome import Outcome
from services.core.request import Stage
from services.core.scheduler import Scheduler
from services.router.console.feed import milliseconds, predicted_ms, waited_ms
from services.router.request import InferenceRequest
from services.router.telemetry.journal import KIND, NO_DETAILS, Entry

ENDS = {
    Outcome.CLIENT_GONE: "its client disconnected",
    Outcome.INTERNAL: "an internal error of the router; the log has this request id",
}


def timeline(found: Entry | InferenceRequest, scheduler: Scheduler, now: float) -> RequestLife:
    """One request from its arrival to its end, or to now."""
    entry = found if isinstance(found, Entry) else Entry(0, now, "admit", None, found, NO_DETAILS, "")
    request = entry.request
    return RequestLife(
        id=request.id,
        tenant=request.tenant,
        model=request.model,
        class_name=_class_name(request),
        deadline_ms=request.deadline_ms,
        level=request.level,
        state=_state(entry),
        outcome=None if entry.outcome is None else entry.outcome.value,
        message=entry.message,
        degraded=list(request.cuts),
        timeline=sorted(_timeline(entry, scheduler.settings.safety_margin), key=_at),
        numbers=_numbers(entry, scheduler),
    )


def _at(moment: Moment) -> float:
    return moment.at_ms


def _class_name(request: InferenceRequest) -> str:
    if request.admitted:
        return request.flow.node.name
    return "" if request.account is None else request.account.class_name


def _state(entry: Entry) -> Progress:
    if entry.outcome is not None:
        return "ended"
    request = entry.request
    return "running" if request.admitted and request.stage is Stage.RUNNING else "waiting"


# ---- events


def _timeline(entry: Entry, margin: float) -> Iterator[Moment]:
    request, depth = entry.request, entry.request.queue_depth
    yield Moment(0.0, "arrived", "" if depth is None else f"{_count(depth, 'request')} queued ahead")
    if depth is not None and request.counted_wait_s + request.counted_service_s:
        yield Moment(0.0, "checked", _weighed(request, margin))
    if request.admitted:
        yield from _on_its_way(request)
    gone = request.client_outcome
    if gone is not None:
        yield Moment(_since(request, request.client_outcome_at), KIND[gone], "its work continues without a client")
    if entry.outcome is not None and gone is not None:
        yield Moment(_since(request, entry.at), "ended", "the work without a client has ended")
    elif entry.outcome is not None:
        yield Moment(_since(request, entry.at), entry.what, _end(entry, entry.outcome))


def _on_its_way(request: InferenceRequest) -> Iterator[Moment]:
    wait = f"a wait of {request.predicted_wait_s * 1000:.0f} ms was predicted"
    yield Moment(0.0, "degrade" if request.level else "admit", f"queued at degradation level {request.level}; {wait}")
    if request.found is not None and request.ready_at:
        yield Moment(_since(request, request.ready_at), "passages", _passages(request))
    if request.started_at:
        yield Moment(_since(request, request.started_at), "started", _started(request))
    if request.attempts > 1 and request.failed_worker is not None:
        on = f"on {request.worker_name}: {request.failed_worker.name} failed or rejected it"
        yield Moment(_since(request, request.sent_at), "retried", on)
    if first_at := request.first_token_at:
        yield Moment(
            _since(request, first_at), "first token", "" if request.parsed.stream else "as its worker reported it"
        )


def _weighed(request: InferenceRequest, margin: float) -> str:
    """What its deadline was tested with: the sum that had to fit."""
    wait, work = request.counted_wait_s * 1000, request.counted_service_s * 1000
    share, whole = f"{100 * margin:.0f} %", (request.deadline - request.arrived_at) * 1000
    text = f"{wait:.0f} ms of wait and {work:.0f} ms of work had to fit into {share} of {whole:.0f} ms"
    if request.first_token_by == inf:
        return text
    return f"{text}, and its first token into {share} of {(request.first_token_by - request.arrived_at) * 1000:.0f} ms"


def _since(request: InferenceRequest, at: float) -> float:
    return max(0.0, milliseconds(at - request.arrived_at))


def _passages(request: InferenceRequest) -> str:
    found = request.found
    if found is None or found.source == "skipped":
        return "skipped at this degradation level"
    return f"{found.source}{f' ({found.reason})' if found.reason else ''}, after {found.seconds * 1000:.0f} ms"


def _started(request: InferenceRequest) -> str:
    first = request.worker_name if request.failed_worker is None else request.failed_worker.name
    waited = f"after {(request.started_at - request.queued_at) * 1000:.0f} ms in the queue"
    granted = request.granted_limit
    limit = "no limit of its answer" if granted is None else f"at most {_count(granted, 'token')}"
    return f"{f'on {first}, ' if first else ''}{waited}; {limit}"


def _end(entry: Entry, outcome: Outcome) -> str:
    request, end = entry.request, entry.request.end
    if outcome is not Outcome.SERVED:
        return entry.message or ENDS.get(outcome, "")
    used = f"{100_000 * (entry.at - request.arrived_at) / request.deadline_ms:.0f} % of its deadline"
    if end is None:
        return used
    return f"{used}; {_count(end.prompt_tokens, 'token')} in the prompt, {end.completion_tokens} generated"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# ---- numbers


def _numbers(entry: Entry, scheduler: Scheduler) -> Numbers:
    request, end = entry.request, entry.request.end
    details, found = entry.details, request.found
    if request.queue_depth is None:
        return Numbers(total_ms=_total_ms(entry), hint_ms=details.retry_hint_ms)
    admitted, counted = request.admitted, request.counted_wait_s + request.counted_service_s > 0
    first_at = request.first_token_at
    return Numbers(
        prompt_tokens=request.prompt_tokens if end is None else end.prompt_tokens,
        context_tokens=request.context_tokens,
        max_tokens=None if request.open_ended else request.max_tokens,
        granted_tokens=request.granted_limit or None,
        completion_tokens=None if end is None else end.completion_tokens,
        charge_tokens=round(request.charge_tokens, 1) if admitted else None,
        predicted_wait_ms=predicted_ms(entry),
        predicted_wait_q95_ms=milliseconds(scheduler.forecast(request)[-1]) if admitted else None,
        counted_wait_ms=milliseconds(request.counted_wait_s) if counted else None,
        counted_service_ms=milliseconds(request.counted_service_s) if counted else None,
        waited_ms=waited_ms(entry) if entry.outcome is not None or not request.started_at else _waited_ms(request),
        total_ms=_total_ms(entry),
        first_token_ms=_since(request, first_at) if first_at else None,
        retrieval_source=None if found is None else found.source,
        retrieval_ms=None if found is None else milliseconds(found.seconds),
        worker=request.worker_name or None,
        first_worker=None if request.failed_worker is None else request.failed_worker.name,
        attempts=request.attempts,
        queue_depth=request.queue_depth,
        hint_ms=details.retry_hint_ms,
        margin=scheduler.settings.safety_margin,
    )


def _waited_ms(request: InferenceRequest) -> float:
    return milliseconds(request.waited_s)


def _total_ms(entry: Entry) -> float | None:
    return None if entry.outcome is None else milliseconds(entry.at - entry.request.arrived_at)
