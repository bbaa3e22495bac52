"""When each person asks: drawn before anything is sent, from the plan and a seed alone.

Arrivals are a Poisson process whose rate changes in steps. They are made on a clock of their own that runs `rate` times
as fast as the wall's, where gaps have mean 1; so the same seed gives the same people at every capacity, and a policy is
compared with another before the same crowd.

Where the plan asks for more than the bench may send, every tenant's rate is lowered by the same factor: who dominates
still does, and the run says that it was `capped`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from loadtests.storm.plan import MOST_RATE_PER_S, Load, Plan

SEED = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """One person, due `at_s` seconds after the beginning."""

    at_s: float
    tenant: str


@dataclass(frozen=True, slots=True)
class Scale:
    """How many requests a second a multiple of 1 is, and whether that is less than the plan means."""

    per_s: float
    capped: bool = False


def scale(plan: Plan, capacity_per_s: float, most_per_s: float = MOST_RATE_PER_S) -> Scale:
    """The capacity itself, or what keeps the plan's highest rate within the bound."""
    asked_per_s = plan.most_times * capacity_per_s
    if asked_per_s <= most_per_s:
        return Scale(capacity_per_s)
    return Scale(most_per_s / plan.most_times, capped=True)


def arrivals(plan: Plan, per_s: float, seed: int = SEED) -> Iterator[Arrival]:
    """Everybody, in the order of time. The same plan, rate and seed give the same people."""
    return merge(*(_of(load, plan.seconds, per_s, seed) for load in plan.loads), key=lambda arrival: arrival.at_s)


def _of(load: Load, seconds: float, per_s: float, seed: int) -> Iterator[Arrival]:
    chance = random.Random(f"{seed}:{load.tenant}")  # one more tenant changes nobody else's arrivals
    ends = [*(step.from_s for step in load.steps[1:]), seconds]
    due, shown = chance.expovariate(1.0), 0.0  # on the arrivals' own clock: the next one, and this step's beginning
    for step, end in zip(load.steps, ends, strict=True):
        rate, end = step.times * per_s, min(end, seconds)
        if rate <= 0 or end <= step.from_s:
            continue
        shows_at_end = shown + (end - step.from_s) * rate
        while due < shows_at_end:
            yield Arrival(step.from_s + (due - shown) / rate, load.tenant)
            due += chance.expovariate(1.0)
        shown = shows_at_end
