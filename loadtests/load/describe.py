"""What a plan would send: amount, burstiness, lengths and tenants. Nothing is sent.

Three figures describe burstiness: the coefficient of variation of the gaps (1 for independent arrivals, more in
bursts), the busiest second over the mean one, and the share of empty seconds.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from loadtests.load.arrivals import asks
from loadtests.load.figures import quantile
from loadtests.load.plan import Plan

SHOWN_TENANTS = 10


@dataclass(frozen=True, slots=True)
class Tokens:
    p50: int
    p95: int
    max: int
    total: int


@dataclass(frozen=True, slots=True)
class Description:
    """All requests of a plan, inside and outside its window."""

    requests: int
    per_s: float
    gap_cv: float
    busiest_second: int
    busiest_over_mean: float
    empty_seconds: float  # share
    prompt_tokens: Tokens
    answer_tokens: Tokens
    deadline_ms: tuple[float, float]  # shortest and longest
    tenants: dict[str, int]  # busiest first

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(plan: Plan) -> Description:
    """Describe every request of the plan. Raises ValueError if there is none."""
    moments_s, deadlines_ms = array("d"), array("d")
    prompts, answers = array("l"), array("l")
    tenants: Counter[str] = Counter()
    for ask in asks(plan):  # possibly millions: only their numbers are kept
        moments_s.append(ask.at_s)
        deadlines_ms.append(ask.deadline_ms)
        prompts.append(ask.prompt_tokens)
        answers.append(ask.answer_tokens)
        tenants[ask.tenant.name] += 1
    if not moments_s:
        raise ValueError("this plan sends nothing")
    per_second = Counter(map(int, moments_s))
    busiest = max(per_second.values())
    return Description(
        requests=len(moments_s),
        per_s=len(moments_s) / plan.seconds,
        gap_cv=gap_cv(moments_s),
        busiest_second=busiest,
        busiest_over_mean=busiest * plan.seconds / len(moments_s),
        empty_seconds=1 - len(per_second) / math.ceil(plan.seconds),
        prompt_tokens=_tokens(prompts),
        answer_tokens=_tokens(answers),
        deadline_ms=(min(deadlines_ms), max(deadlines_ms)),
        tenants=dict(tenants.most_common()),
    )


def gap_cv(moments_s: Sequence[float]) -> float:
    """Standard deviation of the gaps over their mean; 0 if there are too few."""
    gaps = [later - earlier for earlier, later in pairwise(moments_s)]
    mean = fmean(gaps) if gaps else 0.0
    return math.sqrt(fmean((gap - mean) ** 2 for gap in gaps)) / mean if mean else 0.0


def _tokens(lengths: Sequence[int]) -> Tokens:
    ordered = sorted(lengths)
    return Tokens(int(quantile(ordered, 0.5)), int(quantile(ordered, 0.95)), ordered[-1], sum(ordered))


def lines(found: Description) -> Iterator[str]:
    yield f"{found.requests:,} requests, {found.per_s:,.2f}/s"
    yield f"gaps vary by {found.gap_cv:.2f} times their mean (independent arrivals: 1)"
    yield (
        f"the busiest second has {found.busiest_second:,}, {found.busiest_over_mean:.1f} times the mean; "
        f"{found.empty_seconds:.0%} of the seconds are empty"
    )
    for name, tokens in (("prompts", found.prompt_tokens), ("answers", found.answer_tokens)):
        yield f"{name}: p50 {tokens.p50:,} tokens, p95 {tokens.p95:,}, most {tokens.max:,}; {tokens.total:,} in all"
    shortest, longest = found.deadline_ms
    yield f"deadlines: {shortest:,.0f} ms" + (f" to {longest:,.0f} ms" if longest > shortest else "")
    yield f"tenants: {len(found.tenants)}"
    for name, count in list(found.tenants.items())[:SHOWN_TENANTS]:
        yield f"  {name:<34} {count:>9,} {count / found.requests:>8.2%}"
    if len(found.tenants) > SHOWN_TENANTS:
        yield f"  and {len(found.tenants) - SHOWN_TENANTS} more"
