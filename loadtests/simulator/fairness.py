"""Measures of fairness, computed during the run.

**Gap** (Golestani; Bennett and Zhang; VTC): the range of W_f/w_f - W_g/w_g over any interval in which tenants f and g
both have queued work, W being the cost served. It is measured for each pair of the first 16 tenants. Late answers
count too; service counts when it ends.

**Jain's index** of x: (sum x)^2 / (n * sum x^2), 1 when all x are equal (Jain et al., 1984). x is the cost served to a
tenant in 60 s over its max-min fair share of all cost served in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from loadtests.simulator.clients import Tenant
from loadtests.simulator.report import Fairness

WATCHED = 16
WINDOW_S = 60.0


class Gaps:
    """The gap of each pair of the first tenants."""

    __slots__ = ("_backlogged", "_high", "_low", "_served", "_since", "largest", "largest_cost", "pair", "tenants")

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self.tenants = tenants[:WATCHED]
        for place, tenant in enumerate(self.tenants):
            tenant.watch = place
        count = len(self.tenants)
        self._served = [0.0] * count
        self._backlogged: dict[int, None] = {}
        self._since = dict.fromkeys(combinations(range(count), 2), 0.0)
        self._low = dict(self._since)
        self._high = dict(self._since)
        self.largest = 0.0
        self.pair: tuple[int, int] | None = None
        self.largest_cost = 0.0

    def backlogged(self, watch: int) -> None:
        """The tenant has queued work from now on: an interval begins with every other backlogged tenant."""
        for other in self._backlogged:
            pair = (watch, other) if watch < other else (other, watch)
            self._low[pair] = self._high[pair] = self._served[pair[0]] - self._served[pair[1]]
        self._backlogged[watch] = None

    def idle(self, watch: int) -> None:
        """The tenant has no queued work any more."""
        self._backlogged.pop(watch, None)

    def served(self, watch: int, cost: float) -> None:
        """`cost` is divided by the tenant's weight."""
        self._served[watch] += cost
        if watch not in self._backlogged:
            return
        for other in self._backlogged:
            if other != watch:
                self._moved((watch, other) if watch < other else (other, watch))

    def _moved(self, pair: tuple[int, int]) -> None:
        apart = self._served[pair[0]] - self._served[pair[1]]
        if apart < self._low[pair]:
            self._low[pair] = apart
        elif apart > self._high[pair]:
            self._high[pair] = apart
        gap = self._high[pair] - self._low[pair]
        if gap > self.largest:
            self.largest, self.pair = gap, pair


class Jain:
    """Jain's index of each window of 60 s (of the counting window, if it is shorter)."""

    __slots__ = ("_tenants", "indexes")

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        self._tenants = tenants
        self.indexes: list[float] = []

    def forget(self) -> None:
        for tenant in self._tenants:
            tenant.asked_cost = tenant.served_cost = 0.0

    def close(self) -> None:
        asking = [tenant for tenant in self._tenants if tenant.asked_cost > 0]
        total = sum(tenant.served_cost for tenant in asking)
        if len(asking) > 1 and total > 0:
            asked = [max(tenant.asked_cost, tenant.served_cost) for tenant in asking]
            shares = max_min(asked, [tenant.weight for tenant in asking], total)
            self.indexes.append(
                index([tenant.served_cost / share for tenant, share in zip(asking, shares, strict=True)])
            )
        self.forget()


def index(values: Sequence[float]) -> float:
    """Jain's index: 1 for equal values, 1/n if one value is all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def max_min(asked: Sequence[float], weights: Sequence[float], total: float) -> list[float]:
    """Weighted max-min fair shares: no tenant gets more than it asked for; the others share the rest by weight."""
    shares = [0.0] * len(asked)
    left, weight_left = total, float(sum(weights))
    for place in sorted(range(len(asked)), key=lambda each: asked[each] / weights[each]):
        shares[place] = min(asked[place], left * weights[place] / weight_left)
        left -= shares[place]
        weight_left -= weights[place]
    return shares


def summary(gaps: Gaps, jain: Jain) -> Fairness:
    watched = len(gaps.tenants)
    pair = (gaps.tenants[gaps.pair[0]].name, gaps.tenants[gaps.pair[1]].name) if gaps.pair else None
    indexes = jain.indexes
    return Fairness(
        gap_cost=gaps.largest if watched > 1 else None,
        gap_pair=pair,
        watched=watched,
        largest_cost=gaps.largest_cost,
        jain_min=min(indexes, default=None),
        jain_mean=sum(indexes) / len(indexes) if indexes else None,
    )
