"""What other routers of a pool do, as the exchange said last: docs/architecture/mechanisms/several-routers.md.

A tenant is below its share if what it asks for, of all routers, is at most its part of the whole pool:

    asked here + asked elsewhere <= pool's rate * weight / A * W / (sum of W)

A is the weight of the tenants of its class that are active at any router, W the weight of its class, and the sum is
over the classes that are active at any router. Without news for STALE_S the router's own figures are used, as with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, inf
from typing import TYPE_CHECKING

from services.core.stats import DEMAND_S

if TYPE_CHECKING:
    from services.core.estimator import Estimator
    from services.core.pool import ClassNode, Flow, PoolQueue

STALE_S = 2.0
"""The age in seconds from which an exchange is not used any more."""
SETTLE_S = 1.0
"""Five exchanges: a router that has just begun does not know yet what the others do."""


class Elsewhere:
    """One pool's tenants at other routers. `pool_slots` returns the slots of all its workers, whoever uses them."""

    __slots__ = ("_asked", "_pool_slots", "_shares", "_weights", "received_at", "since")

    def __init__(self, pool_slots: Callable[[], int]) -> None:
        self._pool_slots = pool_slots
        self.received_at = self.since = -inf
        """When it was received last, and since when without a gap."""
        self._asked: Mapping[tuple[str, str], float] = {}
        self._weights: Mapping[str, float] = {}
        self._shares: dict[Flow, float] = {}

    @property
    def slots(self) -> int:
        """Slots of all workers of the pool, whoever uses them."""
        return self._pool_slots()

    def receive(self, now: float, asked_per_s: Mapping[tuple[str, str], float], weights: Mapping[str, float]) -> None:
        """Replace what is known. By tenant and class: work in token-equivalents per second that other routers were
        asked for. By class: weight of the tenants that are active at other routers only.
        """
        if not self.is_fresh(now):
            self.since = now
        self.received_at = now
        self._asked, self._weights = asked_per_s, weights
        self._shares.clear()

    def is_fresh(self, now: float) -> bool:
        """Whether the exchange is recent enough to decide by."""
        return now - self.received_at <= STALE_S

    def is_settled(self, now: float) -> bool:
        """Whether the exchange has been fresh for SETTLE_S: by then all routers have said what they serve."""
        return self.is_fresh(now) and now - self.since >= SETTLE_S

    def asked_elsewhere(self, now: float, flow: Flow) -> float:
        """What the tenant asks for of the other routers, in token-equivalents per second."""
        asked_per_s = self._asked.get((flow.tenant.id, flow.node.name), 0.0)
        return asked_per_s * exp((self.received_at - now) / DEMAND_S)

    def share_per_s(
        self, now: float, node: ClassNode, pool: PoolQueue, estimator: Estimator, joining: float = 0.0
    ) -> float | None:
        """A tenant's share of the whole pool, in token-equivalents per second per unit of weight; None while it is not
        known. `joining`: the weight of a tenant that is about to become active.
        """
        rate, slots, pool_slots = estimator.rate, estimator.slots, self.slots
        if not rate or not pool_slots or not self.is_fresh(now):
            return None
        return rate / slots * pool_slots * self.class_share(pool, node) / (self.active_weight(node) + joining)

    def load(self, now: float, flow: Flow, pool: PoolQueue, estimator: Estimator, asked_per_s: float) -> float | None:
        """What the tenant asks for of all routers, over its share of the whole pool; None if the share is not known.

        `asked_per_s` is what it asks for here, in token-equivalents per second.
        """
        joining = 0.0 if flow.active else flow.weight
        share_per_s = self.share_per_s(now, flow.node, pool, estimator, joining)
        if share_per_s is None:
            return None
        return (asked_per_s + self.asked_elsewhere(now, flow)) / (share_per_s * flow.tenant.weight)

    def share(self, now: float, flow: Flow, pool: PoolQueue, estimator: Estimator) -> float | None:
        """The share of this router's rate that a tenant above its share of the pool gets here; None for any other one.

        It is its share of the whole pool, times the part of its requests that come here; or what it got lately, if that
        is more, since it also gets what others leave. Kept for `share_of`.
        """
        asked_per_s = flow.stats.asked.rate(now)
        load = self.load(now, flow, pool, estimator, asked_per_s)
        if load is None or load <= 1.0 or not estimator.rate:
            self._shares.pop(flow, None)
            return None
        share = self._shares[flow] = max(asked_per_s / load, flow.stats.got.rate(now)) / estimator.rate
        return share

    def share_of(self, flow: Flow) -> float:
        """What `share` found last; infinity if it found none."""
        return self._shares.get(flow, inf)

    def active_weight(self, node: ClassNode) -> float:
        """The weight of the tenants of this class that are active at any router."""
        return node.active_weight + self._weights.get(node.name, 0.0)

    def class_share(self, pool: PoolQueue, node: ClassNode) -> float:
        """The share of the pool of this class, among the classes that are active at any router."""
        if len(pool.nodes) == 1:
            return 1.0
        weights = [each.weight for each in pool.nodes.values() if each is node or self.active_weight(each) > 0]
        return node.weight / sum(weights, 0.0)

    def __repr__(self) -> str:
        return f"<Elsewhere {self.slots} slots, as of {self.received_at:g}: {dict(self._weights)} active>"
