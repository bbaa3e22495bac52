"""Makes table rows from a load that was run. Pure functions of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from loadtests.load.figures import quantiles, share
from loadtests.load.ledger import GAVE_UP, HELD_BACK, LATE, ON_TIME, Refusal
from loadtests.load.ledger import Row as Asked
from loadtests.runs.matrix.cell import Row, Second, TenantRow
from loadtests.runs.matrix.setup import Run, Setup
from loadtests.simulator.fairness import index, max_min

DROPPED = "refused:deadline_expired"
"""Admitted, and rejected at the deadline."""
EXCEEDED = "refused:deadline_exceeded"
"""A 504: the deadline passed while a worker ran the request."""
NO_WEIGHTS: Mapping[str, float] = {}
WITHOUT = ("", "none", "skipped")
"""Sources without passages: none requested, no time left, or none at this level."""
BROKEN = frozenset({EXCEEDED, "refused:upstream_failed", "refused:internal_error", GAVE_UP, HELD_BACK, LATE})


def failed(ending: str) -> bool:
    """A 5xx that is no rejection, a broken answer, a client that gave up, or an answer after its deadline."""
    return ending.startswith("failed:") or ending in BROKEN


def refused(ending: str) -> bool:
    return ending.startswith("refused:") and not failed(ending)


def admitted(asked: Asked) -> bool:
    """Whether it was admitted; a rejection at the deadline counts as admitted."""
    return not refused(asked.ending) or asked.ending == DROPPED


def row(
    name: str, setup: Setup, run: Run, load: float, window_s: tuple[float, float] | None = None,
    quality: Sequence[float] = (1.0,),
) -> Row:  # fmt: skip
    """A table row over the requests that arrived in the window; without one, in the plan's own.

    `quality`: the weight of an answer at each level; the last one also stands for deeper levels.
    """
    begin, end = window_s or run.plan.window
    rows = [each for each in run.ledger.rows if begin <= each.intended_s < end]
    refusals = [each for each in run.ledger.refusals if begin <= each.at_s < end]
    seconds = end - begin
    total = share(rows, refusals, seconds)
    waited = quantiles(each.latency_s for each in rows if admitted(each))
    endings = [each.ending for each in rows]
    on_time = [each for each in rows if each.ending == ON_TIME]
    count = max(1, len(rows))
    return Row(
        name=name,
        load=load,
        asked_per_s=total.offered_per_s,
        answers_per_s=total.answers_ms.count / seconds,
        p50_ms=waited.p50,
        p95_ms=waited.p95,
        p99_ms=waited.p99,
        deadline_ms=max((each.deadline_ms for each in rows), default=0.0),
        on_time=total.on_time,
        refused=sum(map(refused, endings)) / count,
        dropped=endings.count(DROPPED) / count,
        failed=sum(map(failed, endings)) / count,
        exceeded=endings.count(EXCEEDED) / count,
        on_time_per_s=total.goodput_per_s,
        goodput=total.goodput_tokens_per_s / setup.capacity.tokens_per_s,
        in_vain=in_vain(run),
        refused_p50_ms=total.refusals_ms.p50,
        refused_p99_ms=total.refusals_ms.p99,
        hinted=hinted(run.ledger.refusals),
        cut=total.cut,
        answers_p50_ms=total.answers_ms.p50,
        answers_p95_ms=total.answers_ms.p95,
        left=sum(each == GAVE_UP or each.startswith("failed:") for each in endings) / count,
        worth_per_s=sum(quality[min(each.level, len(quality) - 1)] for each in on_time) / seconds,
        with_passages=sum(each.source not in WITHOUT for each in on_time) / max(1, len(on_time)),
        mean_level=sum(each.level for each in on_time) / max(1, len(on_time)),
        own_hints=own_hints(refusals),
        fairness=fairness(rows, setup.stand.weights),
        honest_on_time=share([each for each in rows if not each.impatient], [], seconds).on_time,
        tenants=[_tenant(tenant.name, rows, seconds) for tenant in run.plan.tenants],
    )


def _tenant(name: str, rows: Sequence[Asked], seconds: float) -> TenantRow:
    own = [each for each in rows if each.tenant == name]
    on_time = sum(each.ending == ON_TIME for each in own) / max(1, len(own))
    waited = quantiles(each.latency_s for each in own if admitted(each))
    answers = [each for each in own if each.ending in (ON_TIME, LATE)]
    answered = quantiles(each.latency_s for each in answers)
    tokens = sum(each.tokens for each in answers)
    return TenantRow(name, len(own) / seconds, on_time, waited.p95, answered.p95, tokens)


def in_vain(run: Run) -> float:
    useful = sum(each.tokens for each in run.ledger.rows if each.ending == ON_TIME)
    return max(0.0, 1 - useful / run.used.meter.tokens) if run.used.meter.tokens else 0.0


def hinted(refusals: Sequence[Refusal]) -> float:
    """Share of the refusals with a hint, without those for a deadline that no retry could meet."""
    useful = [each for each in refusals if each.should_retry or not each.code.startswith("deadline_")]
    return sum(each.hint_ms is not None for each in useful) / max(1, len(useful))


def own_hints(refusals: Sequence[Refusal]) -> float:
    hints = [each.hint_ms for each in refusals if each.hint_ms is not None]
    return 1 - max(Counter(hints).values()) / len(hints) if hints else 0.0


def fairness(rows: Sequence[Asked], weights: Mapping[str, float] = NO_WEIGHTS) -> float | None:
    """Jain's index of the tokens that tenants got on time over their max-min fair shares, by weight, of the total."""
    asked: dict[str, float] = {}
    got: dict[str, float] = {}
    for each in rows:
        asked[each.tenant] = asked.get(each.tenant, 0.0) + each.asked_tokens
        got[each.tenant] = got.get(each.tenant, 0.0) + (each.tokens if each.ending == ON_TIME else 0)
    total = sum(got.values())
    if len(asked) < 2 or total == 0:
        return None
    shares = max_min(list(asked.values()), [weights.get(name, 1.0) for name in asked], total)
    return index([got[name] / fair for name, fair in zip(asked, shares, strict=True)])


def seconds(run: Run) -> list[Second]:
    counts = [[0, 0, 0, 0] for _ in range(int(run.plan.seconds) + 1)]
    for each in run.ledger.rows:
        _count(counts, each.intended_s, 0)
        if each.end_s is not None:
            _count(counts, each.end_s, 1 if each.ending == ON_TIME else 2 if refused(each.ending) else 3)
    return [Second(*count) for count in counts]


def _count(counts: list[list[int]], at_s: float, place: int) -> None:
    if 0 <= at_s < len(counts):
        counts[int(at_s)][place] += 1
