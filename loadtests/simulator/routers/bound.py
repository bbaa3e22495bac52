"""The bound on the gap of service between two tenants of one class, over all routers.

    B_f + B_g + H + X_f + X_g        B = Q + (C + I)/w        H = 2Q + C/w_min + rho * (exchange + trip)
                                     X = min(1, share) * R * (exchange + trip) / w, 0 behind one router

Q is the largest quantum of any router, C the largest cost, I the most that the tenant had in flight, R the capacity,
and rho the speed of the level: R / active weight. H is how far the levels of two routers may be apart, X what a tenant
can be served elsewhere before this router knows. docs/architecture/mechanisms/several-routers.md derives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from loadtests.scenarios.model import Scenario
from loadtests.scenarios.routers import Routers
from loadtests.simulator.fairness import Gaps
from loadtests.simulator.job import Job
from loadtests.simulator.routers.router import SimRouter
from services.core.cost import Weights
from services.core.leases.borrower import SMALL_POOL


class GapBound:
    """Records what each tenant has in flight."""

    def __init__(self, scenario: Scenario, routers: Routers, weights: Weights) -> None:
        self._cost = weights.cost
        self._stale_s = (routers.exchange_ms + 4 * routers.half_trip_ms) / 1000.0
        self._small = scenario.worker_count <= SMALL_POOL
        self._duration_s = scenario.duration_s
        self._now: dict[str, float] = defaultdict(float)
        self._largest: dict[str, float] = defaultdict(float)
        self._served: dict[str, float] = defaultdict(float)
        self._reached: dict[str, set[int]] = defaultdict(set)
        self.quantum = 0.0

    def started(self, job: Job) -> None:
        held = self._now[job.tenant] = self._now[job.tenant] + self._held(job)
        self._largest[job.tenant] = max(self._largest[job.tenant], held)
        self._reached[job.tenant].add(job.router.place)
        self.quantum = max(self.quantum, job.router.pool.quantum)

    def ended(self, job: Job) -> None:
        self._now[job.tenant] -= self._held(job)
        self._served[job.tenant] += self._held(job)

    def _held(self, job: Job) -> float:
        return self._cost(job.prompt_tokens + job.context_tokens, job.planned_tokens)

    def of(self, gaps: Gaps, routers: Sequence[SimRouter]) -> float | None:
        """The bound for the pair with the largest gap, in cost per unit of weight; None without a pair."""
        if gaps.pair is None or not self.quantum:
            return None
        pair = [gaps.tenants[place] for place in gaps.pair]
        cost = gaps.largest_cost
        total_per_s = sum(self._served.values()) / self._duration_s
        active = sum({tenant.name: tenant.weight for tenant in gaps.tenants}.values())
        own = sum(self.quantum + (cost + self._largest[each.name]) / each.weight for each in pair)
        levels = 2 * self.quantum + cost / min(each.weight for each in pair)
        levels += total_per_s / active * self._stale_s
        elsewhere = sum(
            self._served[each.name] / self._duration_s * self._stale_s / each.weight
            for each in pair
            if len(self._reached[each.name]) > 1
        )
        return own + levels + elsewhere
