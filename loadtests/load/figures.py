"""What a ledger says, as figures. Pure: the same ledger gives the same figures.

Counted are the requests that arrived in the plan's window, so that neither the start nor the end of a run flatters:
a naive count over the whole run credits a long queue that is drained after the load has stopped. The ledger's checks
(endings, hints, answers after their deadline) cover the whole run, retries included.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from loadtests.load.ledger import GAVE_UP, LATE, ON_TIME, Ledger, Refusal, Row
from loadtests.load.plan import Plan


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Milliseconds; all 0 where there is nothing."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """How some requests of the window fared: all of them, or one tenant's."""

    arrivals: int
    endings: dict[str, int]
    on_time: float  # share of arrivals
    offered_per_s: float
    goodput_per_s: float
    goodput_tokens_per_s: float
    answers_ms: Quantiles  # from the intended time
    first_token_ms: Quantiles  # of streams
    refusals_ms: Quantiles  # tries, not requests
    cut: float  # share of the answers that said something was cut, or were shorter than asked
    attempts: float  # tries per request


@dataclass(frozen=True, slots=True)
class Figures:
    """A run."""

    window_s: tuple[float, float]
    all: Share
    tenants: dict[str, Share]
    requests: int
    tries: dict[str, int]
    late_answers: int  # that must have been sent after their deadline
    hintless: int  # refusals that invite a retry and do not say when
    generator_ms: Quantiles  # by how much the generator itself was late
    generator_late: float  # share of the requests sent later than the plan's `late_ms`
    valid: bool  # whether that share is small enough for the rest to mean anything
    notes: list[str] = field(default_factory=list)
    unsent: int = 0  # who gave up before a byte of theirs had left

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures(plan: Plan, ledger: Ledger) -> Figures:
    """Everything a ledger says of a plan."""
    begin, end = plan.window
    rows = [row for row in ledger.rows if begin <= row.intended_s < end]
    refusals = [refusal for refusal in ledger.refusals if begin <= refusal.at_s < end]
    late_share = sum(row.late_s * 1000 > plan.late_ms for row in ledger.rows) / max(1, len(ledger.rows))
    valid = late_share <= plan.max_late_share
    unsent = sum(row.ending == GAVE_UP and row.sent_s is None for row in ledger.rows)
    return Figures(
        window_s=plan.window,
        all=share(rows, refusals, end - begin),
        tenants=_by_tenant(plan, rows, refusals),
        requests=len(ledger.rows),
        tries=dict(sorted(ledger.tries.items())),
        late_answers=sum(_sent_late(row, plan.grace_ms) for row in ledger.rows),
        hintless=sum(refusal.should_retry and refusal.hint_ms is None for refusal in ledger.refusals),
        generator_ms=quantiles(row.late_s for row in ledger.rows),
        generator_late=late_share,
        valid=valid,
        notes=[*([] if valid else [_too_late(plan, late_share)]), *([_unsent(unsent)] if unsent else [])],
        unsent=unsent,
    )


def _too_late(plan: Plan, late_share: float) -> str:
    return (
        f"the generator sent {late_share:.1%} of the requests more than {plan.late_ms:g} ms late "
        f"(at most {plan.max_late_share:.0%} may be): this run measured the machine, not the server"
    )


def _unsent(unsent: int) -> str:
    return (
        f"{unsent:,} of the requests never left: within their patience the server accepted no connection for them, "
        "or the plan's `connections` had none free"
    )


def _by_tenant(plan: Plan, rows: list[Row], refusals: list[Refusal]) -> dict[str, Share]:
    """In one pass: a plan may have a thousand tenants."""
    begin, end = plan.window
    asked, refused = defaultdict[str, list[Row]](list), defaultdict[str, list[Refusal]](list)
    for row in rows:
        asked[row.tenant].append(row)
    for refusal in refusals:
        refused[refusal.tenant].append(refusal)
    return {tenant.name: share(asked[tenant.name], refused[tenant.name], end - begin) for tenant in plan.tenants}


def _sent_late(row: Row, grace_ms: float) -> bool:
    """Whether a whole answer came so late that it was sent after its deadline.

    From when it was really asked for, and less what the client took to notice it: no server answers for the
    generator's own lateness.
    """
    if row.ending not in (LATE, ON_TIME) or row.end_s is None or row.last_sent_s is None:
        return False
    return (row.end_s - row.lag_s - row.last_sent_s) * 1000 > row.deadline_ms + grace_ms


def share(rows: Sequence[Row], refusals: Sequence[Refusal], seconds: float) -> Share:
    """The figures of these rows, which arrived within so many seconds."""
    served = [row for row in rows if row.ending in (ON_TIME, LATE)]
    on_time = [row for row in served if row.ending == ON_TIME]
    return Share(
        arrivals=len(rows),
        endings=dict(sorted(Counter(row.ending for row in rows).items())),
        on_time=len(on_time) / max(1, len(rows)),
        offered_per_s=len(rows) / seconds if seconds else 0.0,
        goodput_per_s=len(on_time) / seconds if seconds else 0.0,
        goodput_tokens_per_s=sum(row.tokens for row in on_time) / seconds if seconds else 0.0,
        answers_ms=quantiles(row.latency_s for row in served),
        first_token_ms=quantiles(_first_token_s(row) for row in served if row.first_s is not None),
        refusals_ms=quantiles(refusal.after_s for refusal in refusals),
        cut=sum(bool(row.degraded) or row.tokens < row.asked_tokens for row in served) / max(1, len(served)),
        attempts=fmean(row.attempts for row in rows) if rows else 0.0,
    )


def _first_token_s(row: Row) -> float:
    return 0.0 if row.first_s is None else row.first_s - row.tried_s


def quantiles(seconds: Iterable[float | None]) -> Quantiles:
    """Nearest-rank quantiles of what is there, in milliseconds."""
    ordered = sorted(1000 * value for value in seconds if value is not None)
    if not ordered:
        return Quantiles()
    p50, p95, p99 = (quantile(ordered, q) for q in (0.50, 0.95, 0.99))
    return Quantiles(len(ordered), p50, p95, p99, ordered[-1])


def quantile(ordered: Sequence[float], q: float) -> float:
    """The least value that a share `q` of them does not exceed."""
    rank = -(-q * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered) - 1, max(0, int(rank) - 1))]


def quantile_of(values: Iterable[float], q: float) -> float:
    """The same of values in any order; nan of none."""
    ordered = sorted(values)
    return quantile(ordered, q) if ordered else math.nan


def on_time_between(ledger: Ledger, begin_s: float, end_s: float) -> float:
    """Share on time of the requests that arrived in an interval: what a timeline is made of."""
    rows = [row for row in ledger.rows if begin_s <= row.intended_s < end_s]
    return sum(row.ending == ON_TIME for row in rows) / max(1, len(rows))
