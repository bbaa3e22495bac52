"""What a tenant that several routers serve has of its weight here, and what it owes here.

    part       asked here / asked of all routers, at least MIN_PART
    weight     of its flow here: the tenant's weight * part
    position   tag + deficit / weight: the same for all tenants of a ring that serves them by their tags

A tenant of four routers counts as a quarter of itself at each, so a ring serves it at an even pace, which predictions
know. Charged for what the others serve instead, it would be served in bursts, since they are known once an exchange.

The parts of all routers add up to the weight, but nothing holds a ring to the tags that all routers share: a tenant
that is served more than its part elsewhere would gain by it. So after each exchange its debt is moved to where its tag
is among those of the tenants that only this router serves, or among all that wait, if each is served elsewhere. Within
BAND_QUANTA nothing is moved: tags of the others' service are estimates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import copysign

from services.core.leases.level import PoolLevel, first_flows
from services.core.pool import ClassNode, Flow, PoolQueue
from services.core.ring import Ring

MIN_PART = 0.01
"""A tenant that has asked for hardly anything here yet has this part of its weight, about that of 64 routers."""
TOLERANCE = 0.05
"""A smaller change of a part, or a smaller part elsewhere, changes nothing: each change restarts sums of weights."""
BAND_QUANTA = 1.0
MAX_QUANTA = 16.0
"""Quanta of a tenant's weight that are charged at once, so that nobody is locked out after an outage of the store."""


class Parts:
    """The parts of one pool's tenants at one router."""

    __slots__ = ("_level", "_pool", "_shared")

    def __init__(self, pool: PoolQueue, level: PoolLevel) -> None:
        self._pool = pool
        self._level = level
        self._shared: dict[Flow, None] = {}

    def set(self, now: float, flow: Flow, asked_elsewhere_per_s: float) -> None:
        """The tenant asks other routers for so much, in token-equivalents per second."""
        here_per_s = flow.stats.asked.rate(now)
        everywhere_per_s = here_per_s + asked_elsewhere_per_s
        part = here_per_s / everywhere_per_s if asked_elsewhere_per_s > TOLERANCE * everywhere_per_s else 1.0
        if part == 1.0:
            self._shared.pop(flow, None)
            self._weigh(now, flow, 1.0)
            return
        self._shared[flow] = None
        self._weigh(now, flow, max(MIN_PART, part))

    def forget(self, now: float) -> None:
        """Nothing is known of other routers any more: each tenant counts in full here."""
        for flow in self._shared:
            self._weigh(now, flow, 1.0)
        self._shared.clear()

    def keep(self, flows: Collection[Flow]) -> None:
        """Forget all other tenants."""
        self._shared = {flow: None for flow in self._shared if flow in flows}

    def align(self, now: float) -> None:
        """Move what tenants that wait owe to where their tags are."""
        waiting: dict[ClassNode, list[Flow]] = {}
        for flow in self._shared:
            if flow.backlog:
                waiting.setdefault(flow.node, []).append(flow)
        for node, shared in waiting.items():
            self._align(now, node.flows, shared, self._middle(now, node))

    def _middle(self, now: float, node: ClassNode) -> float:
        """Where the tenants are that only this router serves, of the first that wait; else where all of them are."""
        waiting = first_flows(node)
        own = [flow for flow in waiting if flow not in self._shared] or waiting
        return sum([self._position(now, flow) for flow in own]) / len(own)

    def _align(self, now: float, ring: Ring[Flow], shared: Sequence[Flow], middle: float) -> None:
        band, limit = BAND_QUANTA * ring.quantum, MAX_QUANTA * ring.quantum
        for flow in shared:
            ahead = self._position(now, flow) - middle
            excess = min(limit, abs(ahead) - band)
            if excess > 0:
                self._pool.charge_elsewhere(now, flow, copysign(excess, ahead) * flow.weight)

    def _position(self, now: float, flow: Flow) -> float:
        return self._level.tag(now, flow) + flow.node.flows.deficit_at(now, flow) / flow.weight

    def _weigh(self, now: float, flow: Flow, part: float) -> None:
        """Set its weight. What it owes while nothing of it waits becomes less or more with it: a debt that stood while
        the weight falls to a tenth would keep it from being served ten times as long. `align` moves that of the others.
        """
        before, weight = flow.weight, flow.tenant.weight * part
        if abs(weight - before) > TOLERANCE * before or (part == 1.0 and weight != before):
            owes = 0.0 if flow.backlog else -flow.node.flows.deficit_at(now, flow)
            self._pool.reweigh(flow, weight)
            self._pool.charge_elsewhere(now, flow, owes * (weight / before - 1.0))
            flow.elsewhere = 1.0 - part

    def __repr__(self) -> str:
        return f"<Parts of {self._pool!r}: {len(self._shared)} tenants are served elsewhere too>"
