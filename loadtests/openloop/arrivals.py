"""When each request should be sent, and how big it is: drawn from the plan alone, before the server is asked anything.

A source of arrivals is an iterator of `Ask` in the order of time; a recorded trace can be another.

Rates may change in steps. Arrivals are made in the time of their own clock, which runs `per_s` times as fast as the
wall's: there a Poisson process has gaps of mean 1 and a paced one of exactly 1, and the moment on the wall at which
that clock shows x is Lambda^-1(x), where Lambda(t) is the integral of the rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import count

from loadtests.openloop.plan import Plan, Size, Tenant


@dataclass(frozen=True, slots=True)
class Ask:
    """One distinct request, due `at_s` seconds after the start."""

    at_s: float
    tenant: Tenant
    prompt_tokens: int
    answer_tokens: int
    stream: bool


def asks(plan: Plan) -> Iterator[Ask]:
    """Every request of the plan in the order of time. The same plan gives the same requests."""
    streams = (_of(tenant, plan) for tenant in plan.tenants)
    return merge(*streams, key=lambda ask: ask.at_s)


def _of(tenant: Tenant, plan: Plan) -> Iterator[Ask]:
    chance = random.Random(f"{plan.seed}:{tenant.name}")  # one more tenant changes nobody else's arrivals
    for at_s in moments(tenant, plan.seconds, chance):
        yield Ask(
            at_s,
            tenant,
            size(tenant.prompt_tokens, chance),
            size(tenant.answer_tokens, chance),
            chance.random() < tenant.stream,
        )


def moments(tenant: Tenant, seconds: float, chance: random.Random) -> Iterator[float]:
    """The intended times of a tenant's requests, before `seconds`."""
    ends = [*(step.from_s for step in tenant.steps[1:]), seconds]
    due, shown = _gap(tenant, chance), 0.0  # on the arrivals' own clock: the next one, and this step's beginning
    for step, end in zip(tenant.steps, ends, strict=True):
        end = min(end, seconds)
        if step.per_s <= 0 or end <= step.from_s:
            continue
        shows_at_end = shown + (end - step.from_s) * step.per_s
        while due < shows_at_end:
            yield step.from_s + (due - shown) / step.per_s
            due += _gap(tenant, chance)
        shown = shows_at_end


def _gap(tenant: Tenant, chance: random.Random) -> float:
    return chance.expovariate(1.0) if tenant.arrivals == "poisson" else 1.0


def size(size: Size, chance: random.Random) -> int:
    """Draw a number of tokens."""
    if size.sigma == 0:
        return round(size.median)
    drawn = chance.lognormvariate(math.log(size.median), size.sigma)
    return min(max(1, round(drawn)), size.most)


def numbered(source: Iterator[Ask]) -> Iterator[tuple[int, Ask]]:
    """With a running number, which is the ledger row's."""
    return zip(count(), source)
