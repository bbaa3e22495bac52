"""What the scheduler learns of a pool, its classes and its tenants. State only; the rules are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

from services.core.calibration import WaitCalibration
from services.core.codel import CoDelLimiter
from services.core.cost import Lengths, Weights
from services.core.estimator import OUTLIER, Estimator
from services.core.ladder import Controller, LadderSizes
from services.core.offered import OfferedWork
from services.core.pool import Flow, PoolQueue
from services.core.quantile import Rolling, Sketch
from services.core.reservations import RetryReservations

DEMAND_S = 3.0
"""Time constant in seconds of a tenant's demand, which decides whether it is below its share."""

GOT_S = 10.0
"""Time constant of its service; longer, since service comes in lumps."""

WAITS = 100
"""Recent waits and slacks of a class that its ladder uses."""
QUIET_SHARE = 0.25
"""A window of the ladder is quiet while at most this share of its requests found no free slot."""
FEW_WAITS = 20
"""Waits below which their q95 would be the longest of them."""


class Waits:
    """Errors of predicted waits, by kind: requests on the new list, and requests that wait for a round."""

    __slots__ = ("in_turn", "new")

    def __init__(self, parent: Waits | None = None) -> None:
        self.new: WaitCalibration = WaitCalibration(parent.new if parent is not None else None)
        self.in_turn: WaitCalibration = WaitCalibration(parent.in_turn if parent is not None else None)

    def of(self, new: bool) -> WaitCalibration:
        """The calibration of one kind."""
        return self.new if new else self.in_turn


class PerSecond:
    """A rate per second, fading by e in `over_s`."""

    __slots__ = ("_at", "_sum", "over_s")

    def __init__(self, over_s: float) -> None:
        self.over_s = over_s
        self._sum = 0.0
        self._at = 0.0

    def add(self, now: float, amount: float) -> float:
        """Add an amount; the rate with it."""
        self._sum = self._sum * exp((self._at - now) / self.over_s) + amount
        self._at = now
        return self._sum / self.over_s

    def rate(self, now: float) -> float:
        """The rate now."""
        return self._sum * exp((self._at - now) / self.over_s) / self.over_s


class TenantStats:
    """One tenant in one class of one pool. Its lengths are shared by its flows in a pool."""

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
        """Work that it asked for, rejected or not."""
        self.got = PerSecond(GOT_S)
        """Work that it was served."""
        self.estimate_rejects = 0
        """Rejections in a row for its estimated lengths."""

    def served(self, service_s: float) -> None:
        """Add a sample: one of its requests held a slot this long."""
        known_s = self.service_s
        if not known_s:
            self.service_s = service_s
            return
        if service_s > OUTLIER * known_s:
            service_s = OUTLIER * known_s
        self.service_s = known_s + 0.05 * (service_s - known_s)


class ClassStats:
    """One class in one pool: errors of its predictions, and its degradation level."""

    __slots__ = (
        "_before",
        "_before_s",
        "_offers_before",
        "_since",
        "controller",
        "crowded",
        "offered",
        "offers",
        "recent_s",
        "slacks_s",
        "waits",
        "weight",
    )

    def __init__(self, weight: float, sizes: LadderSizes) -> None:
        self.weight = weight
        self.waits = Waits()
        self.controller = Controller(sizes.ladder)
        self.recent_s = Rolling(WAITS)
        self.offers = self._offers_before = 0
        """Requests ever offered, rejected or not."""
        self.crowded = 0
        """How many requests of this window of its ladder found no free slot."""
        self.slacks_s = Rolling(WAITS)
        self.offered = OfferedWork(sizes)
        """What was offered in this window of its ladder."""
        self._since = 0.0
        self._before = [0.0] * len(sizes.ladder)
        self._before_s = 0.0

    def is_quiet(self) -> bool:
        """Whether most requests of this window found a free slot. Starts a new window, without the waits before it."""
        offers, crowded = self.offers - self._offers_before, self.crowded
        self._offers_before, self.crowded = self.offers, 0
        quiet = crowded <= QUIET_SHARE * offers
        if quiet and len(self.recent_s):
            self.recent_s = Rolling(WAITS)
        return quiet

    def long_wait_s(self) -> float | None:
        """q95 of the recent waits in seconds; None while few are known."""
        return self.recent_s.quantile(0.95) if len(self.recent_s) >= FEW_WAITS else None

    def offered_per_s(self, now: float, weights: Weights) -> list[float]:
        """Offered work per second over this window and the one before, by level. Starts a new window."""
        this_s = now - self._since
        spent_s = max(1e-9, this_s + self._before_s)
        offered = self.offered.take(weights)
        rates = [(a + b) / spent_s for a, b in zip(offered, self._before, strict=True)]
        self._before, self._before_s, self._since = offered, this_s, now
        return rates


@dataclass(slots=True)
class PoolStats:
    """One pool: its queue, its slots, and what is known of its tenants."""

    pool: PoolQueue
    classes: dict[str, ClassStats]
    estimator: Estimator = field(default_factory=Estimator)
    lengths: Lengths = field(default_factory=Lengths)
    reservations: RetryReservations = field(default_factory=RetryReservations)
    asked: PerSecond = field(default_factory=lambda: PerSecond(DEMAND_S))
    """Work that all tenants asked for, rejected or not."""
    costs: Sketch = field(default_factory=lambda: Sketch(0.02, half_life=500, refresh=64))
    retrieval_s: Sketch = field(default_factory=lambda: Sketch(0.02, half_life=200, refresh=64))

    def stats_of(self, flow: Flow) -> TenantStats:
        """Empty statistics for a new flow. The lengths are those of its tenant's other flows in this pool."""
        nodes = self.pool.nodes
        here = [each for each in flow.tenant.all_flows() if nodes.get(each.node.name) is each.node and each is not flow]
        lengths = here[0].stats.lengths if here else Lengths(self.lengths)
        return TenantStats(lengths, self.classes[flow.node.name])
