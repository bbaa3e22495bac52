"""What has been learned, and of whom: a pool, its classes, its tenants. Plain state; the rules are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from services.core.calibration import WaitCalibration
from services.core.codel import CoDelLimiter
from services.core.cost import Lengths
from services.core.estimator import Estimator
from services.core.ladder import Controller, LadderLevel
from services.core.pool import Flow, PoolQueue
from services.core.quantile import Rolling, Sketch
from services.core.reservations import RetryReservations

DEMAND_S = 3.0
"""How far back a tenant's demand is looked at, to tell those below their share from those above."""

GOT_S = 10.0
"""How far back its service is looked at, which comes in lumps."""

WAITS = 100
"""Recent waits and slacks of a class that its ladder looks at."""


class Waits:
    """How good predicted waits were, of the two kinds: newcomers go ahead, the others wait for a round to pass."""

    __slots__ = ("in_turn", "new")

    def __init__(self, parent: Waits | None = None) -> None:
        self.new: WaitCalibration = WaitCalibration(parent.new if parent is not None else None)
        self.in_turn: WaitCalibration = WaitCalibration(parent.in_turn if parent is not None else None)

    def of(self, new: bool) -> WaitCalibration:
        """Those of one kind."""
        return self.new if new else self.in_turn


class PerSecond:
    """A rate over about the last `over_s`: what came, fading by e in that time."""

    __slots__ = ("_at", "_sum", "over_s")

    def __init__(self, over_s: float) -> None:
        self.over_s = over_s
        self._sum = 0.0
        self._at = 0.0

    def add(self, now: float, amount: float) -> float:
        """This much came. The rate with it."""
        self._sum = self._sum * exp((self._at - now) / self.over_s) + amount
        self._at = now
        return self._sum / self.over_s

    def rate(self, now: float) -> float:
        """How much came per second."""
        return self._sum * exp((self._at - now) / self.over_s) / self.over_s


class TenantStats:
    """One tenant in one class of one pool. Its lengths are the same in all of them."""

    __slots__ = (
        "asked",
        "class_stats",
        "codel",
        "estimate_rejects",
        "got",
        "lengths",
        "reservations",
        "service_s",
        "waits",
    )

    def __init__(self, lengths: Lengths, class_stats: ClassStats) -> None:
        self.lengths = lengths
        self.class_stats = class_stats
        self.waits = Waits(class_stats.waits)
        self.codel = CoDelLimiter()
        self.reservations = RetryReservations()
        self.service_s = 0.0
        self.asked = PerSecond(DEMAND_S)
        """The work that it asked for, refused or not."""
        self.got = PerSecond(GOT_S)
        """The work that it was served."""
        self.estimate_rejects = 0
        """Refusals in a row for how long its answers are thought to be."""

    def served(self, service_s: float) -> None:
        """One of its requests held a slot this long."""
        self.service_s += (service_s - self.service_s) * (0.05 if self.service_s else 1.0)


class ClassStats:
    """One class on one pool: how good its predictions were, and how far it is degraded."""

    __slots__ = (
        "_before",
        "_before_s",
        "_offered",
        "_same",
        "_since",
        "controller",
        "recent_s",
        "slacks_s",
        "waits",
        "weight",
    )

    def __init__(self, weight: float, ladder: Sequence[LadderLevel]) -> None:
        self.weight = weight
        self.waits = Waits()
        self.controller = Controller(ladder)
        self.recent_s = Rolling(WAITS)
        self.slacks_s = Rolling(WAITS)
        self._offered = [0.0] * len(ladder)
        self._same = 0.0  # of those who are not degraded, whatever the level
        self._since = 0.0
        self._before = [0.0] * len(ladder)
        self._before_s = 0.0

    def offered(self, price: float) -> None:
        """Work that was offered by one who is never degraded."""
        self._same += price

    def offered_at(self, prices: list[float]) -> None:
        """Work that was offered, priced from level 0 to the deepest that its tenant allows."""
        offered = self._offered
        if len(prices) < len(offered):
            prices = prices + prices[-1:] * (len(offered) - len(prices))
        self._offered = [work + price for work, price in zip(offered, prices, strict=True)]

    def offered_per_s(self, now: float) -> list[float]:
        """Work offered per second over this window and the one before, level by level; a new window begins."""
        this_s = now - self._since
        spent_s = max(1e-9, this_s + self._before_s)
        offered = [work + self._same for work in self._offered]
        rates = [(a + b) / spent_s for a, b in zip(offered, self._before, strict=True)]
        self._before, self._before_s, self._since = offered, this_s, now
        self._offered, self._same = [0.0] * len(offered), 0.0
        return rates


@dataclass(slots=True)
class PoolStats:
    """One pool: its line, its slots, and what is known of those who use them."""

    pool: PoolQueue
    classes: dict[str, ClassStats]
    estimator: Estimator = field(default_factory=Estimator)
    lengths: Lengths = field(default_factory=Lengths)
    reservations: RetryReservations = field(default_factory=RetryReservations)
    asked: PerSecond = field(default_factory=lambda: PerSecond(DEMAND_S))
    """The work that all asked for, refused or not."""
    costs: Sketch = field(default_factory=lambda: Sketch(0.02, half_life=500, refresh=64))
    retrieval_s: Sketch = field(default_factory=lambda: Sketch(0.02, half_life=200, refresh=64))

    def stats_of(self, flow: Flow) -> TenantStats:
        """Empty statistics for a new flow, which keeps them. Its lengths are those of its tenant's other flows here."""
        nodes = self.pool.nodes
        here = [each for each in flow.tenant.lines() if nodes.get(each.node.name) is each.node and each is not flow]
        lengths = here[0].stats.lengths if here else Lengths(self.lengths)
        return TenantStats(lengths, self.classes[flow.node.name])
