"""Figures of a ledger. Pure: equal ledgers give equal figures.

Requests that arrived in the plan's window count, so that neither the start nor the end of a run flatters: a count over
the whole run would credit a queue that drains after the load has stopped. Ledger checks (endings, hints, answers after
their deadline) cover the whole run, retries included.
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
    """Milliseconds; all 0 without values."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Share:
    """Results of some requests of the window: all of them, or one tenant's."""

    arrivals: int
    endings: dict[str, int]
    on_time: float  # share of arrivals
    offered_per_s: float
    goodput_per_s: float
    goodput_tokens_per_s: float
    answers_ms: Quantiles  # from the intended time
    first_token_ms: Quantiles  # streams only
    refusals_ms: Quantiles  # per try, not per request
    cut: float  # share of answers that report a cut or are shorter than requested
    attempts: float  # tries per request


@dataclass(frozen=True, slots=True)
class Figures:
    window_s: tuple[float, float]
    all: Share
    tenants: dict[str, Share]
    requests: int
    tries: dict[str, int]
    late_answers: int  # that must have been sent after their deadline
    hintless: int  # refusals that invite a retry without a hint
    generator_ms: Quantiles  # the generator's own lateness
    generator_late: float  # share of requests sent later than the plan's `late_ms`
    valid: bool  # whether `generator_late` is small enough for the other figures to count
    notes: list[str] = field(default_factory=list)
    unsent: int = 0  # requests given up before a byte was sent

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures(plan: Plan, ledger: Ledger) -> Figures:
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
    """In one pass, because a plan may have a thousand tenants."""
    begin, end = plan.window
    asked, refused = defaultdict[str, list[Row]](list), defaultdict[str, list[Refusal]](list)
    for row in rows:
        asked[row.tenant].append(row)
    for refusal in refusals:
        refused[refusal.tenant].append(refusal)
    return {tenant.name: share(asked[tenant.name], refused[tenant.name], end - begin) for tenant in plan.tenants}


def _sent_late(row: Row, grace_ms: float) -> bool:
    """Whether a whole answer must have been sent after its deadline.

    Counts from the real time of sending and subtracts the client's lag: the generator's lateness is not the server's.
    """
    if row.ending not in (LATE, ON_TIME) or row.end_s is None or row.last_sent_s is None:
        return False
    return (row.end_s - row.lag_s - row.last_sent_s) * 1000 > row.deadline_ms + grace_ms


def share(rows: Sequence[Row], refusals: Sequence[Refusal], seconds: float) -> Share:
    """The figures of rows that arrived within `seconds`."""
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
    """Nearest-rank quantiles of the values that are not None, in milliseconds."""
    ordered = sorted(1000 * value for value in seconds if value is not None)
    if not ordered:
        return Quantiles()
    p50, p95, p99 = (quantile(ordered, q) for q in (0.50, 0.95, 0.99))
    return Quantiles(len(ordered), p50, p95, p99, ordered[-1])


def quantile(ordered: Sequence[float], q: float) -> float:
    """The least value that a share `q` of the values does not exceed."""
    rank = -(-q * len(ordered) // 1)  # rounded up
    return ordered[min(len(ordered) - 1, max(0, int(rank) - 1))]


def quantile_of(values: Iterable[float], q: float) -> float:
    """`quantile` of values in any order; NaN without values."""
    ordered = sorted(values)
    return quantile(ordered, q) if ordered else math.nan


def on_time_between(ledger: Ledger, begin_s: float, end_s: float) -> float:
    """Share on time of the requests that arrived in an interval, for timelines."""
    rows = [row for row in ledger.rows if begin_s <= row.intended_s < end_s]
    return sum(row.ending == ON_TIME for row in rows) / max(1, len(rows))
