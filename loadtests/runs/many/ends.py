"""How each request ended. It may be answered, rejected, or hit by a fault of its own router or worker, once.

A failure that no fault explains is a loss: the request had a router and workers that could serve or reject it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from loadtests.judging.answers import Verdict
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.many.deck import What
from loadtests.runs.many.record import Entry, Observed, Phase, Span, Stretch
from loadtests.runs.many.sizes import DEADLINE_S, GRACE_S

AFTERMATH_S = 2.0
"""After a fault, in which what it broke may still be found: TCP sends again after up to as long as a link was cut."""
MAX_KEPT = 20
OVERLOADED = ("tenant_queue_full", "rate_limit_exceeded", "yield", "deadline_infeasible")
AT_THE_DEADLINE = ("deadline_expired", "deadline_exceeded")
WITHOUT_WORKERS = ("no_capacity", "draining")


class End(StrEnum):
    RIGHT = "answered completely and correctly"
    REFUSED = "rejected, since there was too much load"
    EXPIRED = "rejected at the deadline, or a stream that says so"
    UNSERVED = "rejected by a router without workers"
    HIT = "broken or failed while its router or worker was under a fault"
    LOST = "lost: no end, or a failure without a fault"
    DOUBLED = "answered twice"
    FOREIGN = "foreign: another's nonce"
    WRONG = "wrong, mixed or truncated, marked as complete"


NEVER = (End.LOST, End.DOUBLED, End.FOREIGN, End.WRONG)
WELL = (End.RIGHT, End.REFUSED, End.EXPIRED)
"""The ends of a service without faults."""


@dataclass
class Ends:
    """`kept`: messages about the first requests that ended as none may."""

    counts: Counter[End] = field(default_factory=Counter)
    hung: int = 0
    failed_while_frozen: int = 0
    kept: list[str] = field(default_factory=list)


def ends(observed: Observed) -> Ends:
    found, at_workers = Ends(), observed.at_workers()
    frozen = observed.phases(Phase.STORE_FROZEN)
    found.counts[End.DOUBLED] = observed.unasked
    for entry in observed.entries:
        end = end_of(entry, observed, at_workers.get(entry.id, ()))
        found.counts[end] += 1
        if end in NEVER:
            _keep(found, end, entry, observed)
        if is_hung(entry, observed):
            found.hung += 1
            _keep(found, "hung", entry, observed)
        if end not in WELL and any(within(entry, stretch) for stretch in frozen):
            found.failed_while_frozen += 1
            _keep(found, f"while the store was frozen: {end}", entry, observed)
    return found


def end_of(entry: Entry, observed: Observed, workers: Sequence[str]) -> End:
    """`workers`: those that had the request; empty if that is not known."""
    if entry.verdict is Verdict.FOREIGN:
        return End.FOREIGN
    if entry.verdict is Verdict.WRONG:
        return End.WRONG
    if len(observed.logged(entry)) > 1:
        return End.DOUBLED
    if entry.verdict is Verdict.RIGHT:
        return End.RIGHT
    if entry.verdict is Verdict.CUT and entry.code in AT_THE_DEADLINE:
        return End.EXPIRED
    if entry.verdict is Verdict.REFUSED and not entry.gave_up:
        for codes, end in ((OVERLOADED, End.REFUSED), (AT_THE_DEADLINE, End.EXPIRED), (WITHOUT_WORKERS, End.UNSERVED)):
            if entry.code in codes:
                return end
    explained = any(_overlaps(entry, span) and span.fault.may_hit(entry.router, workers) for span in observed.spans)
    return End.HIT if explained else End.LOST


def is_hung(entry: Entry, observed: Observed) -> bool:
    """Its router had it for longer than its deadline, or it ended too late for its client. See record 095."""
    return _held_too_long(entry, observed) or _ended_too_late(entry, observed)


def _held_too_long(entry: Entry, observed: Observed) -> bool:
    """By the router's own log, which counts from the arrival. A cable that is out is no reason to keep a request."""
    held_s = max((line.seconds for line in observed.logged(entry)), default=0.0)
    if held_s <= DEADLINE_S + GRACE_S:
        return False
    stopped = any(_holds_up(entry, span) and span.fault.what is not What.ROUTER_UNPLUGGED for span in observed.spans)
    return not stopped and held_s > DEADLINE_S + GRACE_S + observed.still(entry.sent_s, entry.ended_s)


def _ended_too_late(entry: Entry, observed: Observed) -> bool:
    """It ended later than its deadline, or than a fault of its own router, plus a grace.

    A deadline counts from the arrival at the router (record 061). What was sent while its cable was out arrived when
    TCP sent it again.
    """
    due_s = entry.sent_s + DEADLINE_S
    if entry.ended_s <= due_s + GRACE_S:
        return False
    own = [span for span in observed.spans if _holds_up(entry, span)]
    last_s = max([due_s, *(_excused_until_s(entry, span) for span in own)])
    excused_s = entry.noticed_late_s + observed.still(due_s, entry.ended_s)
    return entry.ended_s > last_s + GRACE_S + excused_s and not (entry.gave_up and own)


def _holds_up(entry: Entry, span: Span) -> bool:
    """A router that runs ends its requests at their deadlines, whatever its workers and links do."""
    fault = span.fault
    return fault.router == entry.router and not fault.worker and _overlaps(entry, span)


def _excused_until_s(entry: Entry, span: Span) -> float:
    """When what this fault held up is to have ended; its deadline may only begin where the fault ends."""
    ended_s = span.to_s + AFTERMATH_S
    return ended_s + DEADLINE_S if _was_unplugged(entry, span) else ended_s


def _was_unplugged(entry: Entry, span: Span) -> bool:
    """The request was sent while the cable of its router was out."""
    fault = span.fault
    unplugged = fault.what is What.ROUTER_UNPLUGGED and fault.router == entry.router
    return unplugged and span.from_s <= entry.sent_s < span.to_s


def _overlaps(entry: Entry, span: Span) -> bool:
    return span.from_s <= entry.ended_s and entry.sent_s <= span.to_s + AFTERMATH_S


def within(entry: Entry, stretch: Stretch) -> bool:
    """Sent in this stretch."""
    return stretch.from_s <= entry.sent_s < stretch.to_s


def figures(found: Ends, observed: Observed, wanted: int) -> Iterator[Figure]:
    """`wanted`: the fewest requests of a run."""
    yield at_least("requests sent, each with a nonce", len(observed.entries), wanted)
    yield from (Figure(end.value, found.counts[end]) for end in End if end not in NEVER)
    yield from (at_most(end.value, found.counts[end], 0) for end in NEVER)
    yield at_most("hung: ended over 250 ms after the deadline", found.hung, 0)
    out = [span for span in observed.spans if span.fault.what is What.ROUTER_UNPLUGGED]
    hidden = sum(any(_was_unplugged(entry, span) for span in out) for entry in observed.entries)
    yield Figure("requests sent while their router's cable was out", hidden)
    seconds = sum(stretch.to_s - stretch.from_s for stretch in observed.phases(Phase.STORE_FROZEN))
    name = f"failed while the store was frozen for {seconds:.0f} s"
    yield at_most(name, found.failed_while_frozen, 0)
    errors = [error for log in observed.routers.values() for error in log.errors]
    errors += [error for worker in observed.workers for error in worker.errors]
    yield at_most("errors of their own in the logs of routers and workers", len(errors), 0)
    yield at_most("requests that routers still held at the end", observed.held, 0)
    yield at_most("processes that ended by themselves", len(observed.ended), 0)
    twice = Counter(id for worker in observed.workers for id in worker.received)
    yield Figure("requests that a second worker received", sum(count > 1 for count in twice.values()))
    yield Figure("requests that left the client over 20 ms late", observed.late / max(1, len(observed.entries)), "%")


def _keep(found: Ends, what: str, entry: Entry, observed: Observed) -> None:
    if len(found.kept) >= MAX_KEPT:
        return
    near = [
        f"{span.fault} from {span.from_s - entry.sent_s:+.2f} s to {span.to_s - entry.sent_s:+.2f} s"
        for span in observed.spans
        if _overlaps(entry, span)
    ]
    lines = [line for log in observed.routers.values() for line in log.lines.get(entry.id, ())]
    logged = ", ".join(f"{line.status} {line.outcome} {line.worker}".strip() for line in lines)
    found.kept.append(
        f"{what}: {entry.id} of {entry.tenant} at {entry.router}, {entry.verdict}, status {entry.status} {entry.code}, "
        f"after {entry.ended_s - entry.sent_s:.3f} s{', given up' if entry.gave_up else ''}; "
        f"logged: {logged or 'nothing'}; meanwhile: {'; '.join(near) or 'nothing'}"
    )
