"""When each request is due and how large it is, drawn from the plan alone before the run.

A source of arrivals is an iterator of `Ask` in order of time. A tenant with a recording replays it.

Rates may change in steps. Arrivals are drawn on a clock that runs `per_s` times as fast as the wall clock, where gaps
have mean 1 (`gaps`). A moment x on that clock is Lambda^-1(x) on the wall clock; Lambda(t) is the integral of the rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import count

from loadtests.load.gaps import gaps
from loadtests.load.plan import MAX_TOKENS, Plan, Tenant
from loadtests.scenarios.distributions import Distribution


@dataclass(frozen=True, slots=True)
class Ask:
    at_s: float
    tenant: Tenant
    prompt_tokens: int
    answer_tokens: int
    stream: bool
    client_timeout_s: float = 0.0
    """This client's own; 0 uses its tenant's."""
    impatient: bool = False
    """Whether this client retries at once, whatever its tenant's usual wait."""

    @property
    def deadline_ms(self) -> float:
        return self.tenant.deadline_of(self.answer_tokens)

    @property
    def waits_s(self) -> float:
        """Seconds after which the client gives up a try."""
        return self.client_timeout_s or self.tenant.waits_for_s(self.answer_tokens)


def asks(plan: Plan) -> Iterator[Ask]:
    """Every request of the plan in order of time. Equal plans give equal requests."""
    streams = (_with_impatient(_of(tenant, plan), tenant, plan.seed) for tenant in plan.tenants)
    return merge(*streams, key=lambda ask: ask.at_s)


def _with_impatient(asked: Iterator[Ask], tenant: Tenant, seed: int) -> Iterator[Ask]:
    """The same requests, some of them by impatient clients. Drawn apart, so that their share changes nothing else."""
    share = tenant.retries.impatient
    if not share:
        return asked
    chance = random.Random(f"{seed}:{tenant.name}:impatient")
    return (replace(ask, impatient=chance.random() < share) for ask in asked)


def _of(tenant: Tenant, plan: Plan) -> Iterator[Ask]:
    chance = random.Random(f"{plan.seed}:{tenant.name}")  # another tenant does not change these arrivals
    for request in tenant.recorded:
        if request.at_s < plan.seconds:
            yield Ask(*request[:1], tenant, *request[1:], chance.random() < tenant.stream)
    if tenant.recorded:
        return
    prompt, answer = (token_counts(each, chance) for each in (tenant.prompt_tokens, tenant.answer_tokens))
    for at_s in moments(tenant, plan.seconds, chance):
        yield Ask(at_s, tenant, prompt(), answer(), chance.random() < tenant.stream)


def moments(tenant: Tenant, seconds: float, chance: random.Random) -> Iterator[float]:
    """The intended times of a tenant's requests, all before `seconds`."""
    ends = [*(step.from_s for step in tenant.steps[1:]), seconds]
    gap = gaps(tenant.arrivals, tenant.cv, chance)
    due, shown = gap(), 0.0  # on the arrivals' clock: the next arrival, and the start of this step
    for step, end in zip(tenant.steps, ends, strict=True):
        end = min(end, seconds)
        if step.per_s <= 0 or end <= step.from_s:
            continue
        shows_at_end = shown + (end - step.from_s) * step.per_s
        while due < shows_at_end:
            yield step.from_s + (due - shown) / step.per_s
            due += gap()
        shown = shows_at_end


def token_counts(size: Distribution, chance: random.Random) -> Callable[[], int]:
    draw = size.sampler(chance)
    return lambda: min(max(1, round(draw())), MAX_TOKENS)


def numbered(source: Iterator[Ask]) -> Iterator[tuple[int, Ask]]:
    """Each request with the number of its ledger row."""
    return zip(count(), source)
