"""A request's life, told to people: what happened to it when, and the numbers that decided it.

It is made from the record that the request itself was served by, when somebody opens it, and tells nothing of what was
asked or answered. What happened is told in the order of time; the first token of an answer in one piece is told by its
worker's word, or by what reading and writing cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from services.contracts.console import Moment, Numbers, Progress, RequestLife
from services.core.outcome import Outcome
from services.core.request import Stage
from services.core.scheduler import Scheduler
from services.router.console.feed import milliseconds, predicted_ms, waited_ms
from services.router.observing.journal import KIND, NOTHING_SAID, Entry
from services.router.observing.life import Life
from services.router.workers.turn import Turn

ENDS = {
    Outcome.CLIENT_GONE: "its client left",
    Outcome.INTERNAL: "a fault of the router's: the log has this id",
}


def story(id: str, found: Entry | Life, scheduler: Scheduler, now: float) -> RequestLife:
    """One request from its arrival to its end, or to now."""
    entry = found if isinstance(found, Entry) else Entry(0, now, id, "admit", None, found, NOTHING_SAID, "")
    life, turn = entry.life, entry.life.weighed
    return RequestLife(
        id=id,
        tenant=life.label,
        model="" if turn is None else turn.model,
        class_name=_class_name(life),
        deadline_ms=life.deadline_ms,
        level=0 if turn is None else turn.level,
        state=_state(entry),
        outcome=None if entry.outcome is None else entry.outcome.value,
        message=entry.message,
        degraded=list(life.cuts()),
        timeline=sorted(_timeline(entry, scheduler.settings.safety_margin), key=_at),
        numbers=_numbers(entry, scheduler),
    )


def _at(moment: Moment) -> float:
    return moment.at_ms


def _class_name(life: Life) -> str:
    if life.turn is not None:
        return life.turn.flow.node.name
    return "" if life.tenant is None else life.tenant.class_name


def _state(entry: Entry) -> Progress:
    if entry.outcome is not None:
        return "ended"
    turn = entry.life.turn
    return "running" if turn is not None and turn.stage is Stage.RUNNING else "waiting"


# ---- what happened


def _timeline(entry: Entry, margin: float) -> Iterator[Moment]:
    life, turn = entry.life, entry.life.turn
    in_line = "" if life.weighed is None else f"{_count(life.depth, 'request')} in line before it"
    yield Moment(0.0, "arrived", in_line)
    if life.weighed is not None and life.weighed.counted_wait_s + life.weighed.counted_service_s:
        yield Moment(0.0, "weighed", _weighed(life.weighed, margin))
    if turn is not None:
        yield from _on_its_way(life, turn)
    if life.unheard is not None:
        yield Moment(_since(life, life.unheard_at), KIND[life.unheard], "its work goes on for nobody")
    if entry.outcome is not None and life.unheard is not None:
        yield Moment(_since(life, entry.at), "over", "the work that nobody waited for has ended")
    elif entry.outcome is not None:
        yield Moment(_since(life, entry.at), entry.what, _end(entry, entry.outcome))


def _on_its_way(life: Life, turn: Turn) -> Iterator[Moment]:
    wait = f"a wait of {turn.predicted_wait_s * 1000:.0f} ms was predicted"
    yield Moment(0.0, "degrade" if turn.level else "admit", f"a place in line at level {turn.level}; {wait}")
    if life.found is not None and turn.ready_at:
        yield Moment(_since(life, turn.ready_at), "passages", _passages(life))
    if turn.started_at:
        yield Moment(_since(life, turn.started_at), "started", _started(life, turn))
    if turn.attempts > 1 and turn.left is not None:
        on = f"on {life.worker or _place(turn)}: {turn.left.name} failed or refused"
        yield Moment(_since(life, turn.sent_at), "tried again", on)
    if first_at := life.first_at or turn.first_token_at:
        yield Moment(_since(life, first_at), "first token", "" if life.first_at else "by its worker's word")


def _weighed(turn: Turn, margin: float) -> str:
    """What its deadline was tested with: the sum that had to fit."""
    wait, work = turn.counted_wait_s * 1000, turn.counted_service_s * 1000
    share, whole = f"{100 * margin:.0f} %", (turn.deadline - turn.arrived_at) * 1000
    told = f"{wait:.0f} ms of wait and {work:.0f} ms of work were to fit into {share} of {whole:.0f} ms"
    if turn.first_token_by == inf:
        return told
    return f"{told}, and its first token into {share} of {(turn.first_token_by - turn.arrived_at) * 1000:.0f} ms"


def _since(life: Life, at: float) -> float:
    return max(0.0, milliseconds(at - life.began_at))


def _passages(life: Life) -> str:
    found = life.found
    if found is None or found.source == "skipped":
        return "not looked up, by its level"
    return f"{found.source}{f' ({found.reason})' if found.reason else ''}, after {found.seconds * 1000:.0f} ms"


def _started(life: Life, turn: Turn) -> str:
    first = turn.left.name if turn.left is not None else life.worker or _place(turn)
    waited = f"after {(turn.started_at - turn.queued_at) * 1000:.0f} ms in line"
    return f"{f'on {first}, ' if first else ''}{waited}; it may write {_count(turn.granted_tokens, 'token')}"


def _place(turn: Turn) -> str:
    return "" if turn.worker is None else turn.worker.name


def _end(entry: Entry, outcome: Outcome) -> str:
    life, end = entry.life, entry.life.end
    if outcome is not Outcome.SERVED:
        return entry.message or ENDS.get(outcome, "")
    used = f"{100_000 * (entry.at - life.began_at) / life.deadline_ms:.0f} % of its deadline"
    if end is None:
        return used
    return f"{used}; {_count(end.prompt_tokens, 'token')} read, {end.completion_tokens} written"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# ---- what decided


def _numbers(entry: Entry, scheduler: Scheduler) -> Numbers:
    life, turn, end = entry.life, entry.life.weighed, entry.life.end
    details, found = entry.details, life.found
    if turn is None:
        return Numbers(total_ms=_total_ms(entry), hint_ms=details.retry_hint_ms)
    admitted, counted = life.turn is not None, turn.counted_wait_s + turn.counted_service_s > 0
    first_at = life.first_at or turn.first_token_at
    return Numbers(
        prompt_tokens=turn.prompt_tokens if end is None else end.prompt_tokens,
        context_tokens=turn.context_tokens,
        max_tokens=turn.max_tokens,
        granted_tokens=turn.granted_tokens or None,
        completion_tokens=None if end is None else end.completion_tokens,
        charge_tokens=round(turn.charge_tokens, 1) if admitted else None,
        predicted_wait_ms=predicted_ms(entry),
        predicted_wait_q95_ms=milliseconds(scheduler.forecast(turn)[-1]) if admitted else None,
        counted_wait_ms=milliseconds(turn.counted_wait_s) if counted else None,
        counted_service_ms=milliseconds(turn.counted_service_s) if counted else None,
        waited_ms=waited_ms(entry) if entry.outcome is not None or not turn.started_at else _waited_ms(turn),
        total_ms=_total_ms(entry),
        first_token_ms=_since(life, first_at) if first_at else None,
        retrieval_source=None if found is None else found.source,
        retrieval_ms=None if found is None else milliseconds(found.seconds),
        worker=life.worker or _place(turn) or None,
        first_worker=None if turn.left is None else turn.left.name,
        attempts=turn.attempts,
        queue_depth=life.depth,
        hint_ms=details.retry_hint_ms,
        margin=scheduler.settings.safety_margin,
    )


def _waited_ms(turn: Turn) -> float:
    return milliseconds(turn.started_at - turn.queued_at)


def _total_ms(entry: Entry) -> float | None:
    return None if entry.outcome is None else milliseconds(entry.at - entry.life.began_at)
