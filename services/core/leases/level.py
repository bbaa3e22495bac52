"""How far a router has come in each class, in one measure for all routers of a pool.

    tag     of a tenant: what all routers served it, per unit of weight, and at least V when it begins to wait
    level   of a router: the lowest tag of the tenants that wait there
    V       virtual time: the lowest tag of the tenants that wait steadily; the highest tag served while none does
    turn    of a class: what all routers served it / its weight

This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with tags that all routers share, so a tenant
that two routers serve has one tag, and neither router is behind the other for it; and no tenant saves anything up while
it asks for less than it could get. A router that is more than two quanta ahead of V has used slots that others should
have had.

The exchange keeps the tags. Each router adds what it has served since, over the tenant's weight *here*: of a tenant
with a quarter of its weight here (`parts.py`), a request counts four times, since the others serve three meanwhile. The
next answer says what they did. Counted once, a tag that is too low would be found at all routers at once, and each
would serve the tenant until the next exchange.

Within a router its rings decide. A ring without work goes on with V, or the debts of its tenants would stand still
while the others' are paid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from math import exp, inf

from services.core.leases.messages import Want
from services.core.leases.times import EXCHANGE_S
from services.core.pool import ClassNode, Flow, PoolQueue

MAX_WANTED = 64
"""Requests of one class that a router asks slots for at once."""
MAX_FLOWS = 64
"""Tenants of one class that are looked at, in the order of their turns."""
AHEAD_QUANTA = 2.0

RATE_S = 0.5
"""The mean of what other routers serve a tenant fades with this; so does that of how fast V goes on."""
AGE_S = EXCHANGE_S / 2
"""How old the reports of the others are in an answer, on average."""
PREDICT_S = 1.0
"""For how long after an answer V is taken to go on as fast as before."""

NO_RETRIES: Mapping[str, int] = {}

IsLight = Callable[[Flow], bool]
"""Whether the tenant of a flow with work asks for less than its share of the pool."""
LightOf = Callable[[ClassNode], IsLight]
"""That test, for the tenants of one class."""


class _Moving:
    """A figure as of the last answer of the exchange, and how fast it grows."""

    __slots__ = ("at", "per_s", "value")

    def __init__(self, now: float, value: float) -> None:
        self.value, self.at = value, now
        self.per_s = 0.0

    def set(self, now: float, value: float, growth: float) -> None:
        """`growth`: by how much it grew since the answer before."""
        if (passed_s := now - self.at) > 0:
            self.per_s += (1.0 - exp(-passed_s / RATE_S)) * (growth / passed_s - self.per_s)
        self.value, self.at = value, now

    def grown(self, now: float) -> float:
        """By how much it is likely to have grown since."""
        return self.per_s * min(PREDICT_S, now - self.at)


class _Tag(_Moving):
    """A tenant's tag. `per_s` is what other routers serve it, in token-equivalents."""

    __slots__ = ("charged",)

    def __init__(self, now: float, tag: float, charged: float) -> None:
        super().__init__(now, tag)
        self.charged = charged

    def of(self, flow: Flow) -> float:
        """The tag now. What was served here since the answer is this router's part of what all have served since."""
        return self.value + (flow.charged - self.charged) / flow.weight + self.per_s * AGE_S / flow.tenant.weight


class PoolLevel:
    """What waits in one pool at one router, and how far the router has come."""

    __slots__ = ("_pool", "_tags", "_turns", "_virtual")

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool
        self._virtual: dict[str, _Moving] = {}
        self._turns: dict[str, tuple[float, float]] = {}  # by class: its turn, and what was served here by then
        self._tags: dict[Flow, _Tag] = {}

    def wants(
        self, now: float, light_of: LightOf, retries: Mapping[str, int] = NO_RETRIES, *, queue: bool = True
    ) -> tuple[Want, ...]:
        """What waits in each class and could start. `retries`, by class, wait beside the rings, before all others;
        `queue`: what is in the rings could start, too.
        """
        found: list[Want] = []
        for node in self._pool.nodes.values():
            backlog, first = node.flows.backlog if queue else 0, retries.get(node.name, 0)
            if not backlog and not first:
                continue
            flows = first_flows(node) if queue else []
            light = min(MAX_WANTED, first + light_requests(flows, light_of(node)))
            requests = min(MAX_WANTED, first + backlog)
            found.append(Want(node.name, requests, light, self._level(now, node, flows), self.turn(node)))
        return tuple(found)

    def level(self, now: float, node: ClassNode) -> float:
        """The lowest tag of the first MAX_FLOWS tenants that wait, in tokens per unit of weight, and at least V."""
        return self._level(now, node, first_flows(node))

    def _level(self, now: float, node: ClassNode, flows: Sequence[Flow]) -> float:
        virtual = max(0.0, self.virtual(now, node.name))
        return max(virtual, min([self.tag(now, flow) for flow in flows], default=virtual))

    def tag(self, now: float, flow: Flow) -> float:
        """The tag of a tenant, in tokens per unit of weight. It begins to wait at V, if it is below."""
        return (self._tags.get(flow) or self.begin_tag(flow)).of(flow)

    def turn(self, node: ClassNode) -> float:
        """What the class was served by all routers, per unit of weight, with what this one served since."""
        turn, served = self._turns.get(node.name, (0.0, 0.0))
        return turn + max(0.0, node.flows.served - served) / node.weight

    def virtual(self, now: float, class_name: str) -> float:
        """V of the class, as it is likely to be now; minus infinity while it is not known."""
        virtual = self._virtual.get(class_name)
        return -inf if virtual is None else virtual.value + virtual.grown(now)

    def known_virtual(self, class_name: str) -> float | None:
        """V of the class as it was received last; None while it is not known."""
        virtual = self._virtual.get(class_name)
        return None if virtual is None else virtual.value

    def receive(self, now: float, virtual: Mapping[str, float]) -> None:
        """V of each class, which never falls. Rings without work go on by as much."""
        for name, value in virtual.items():
            known = self._virtual.get(name)
            if value == inf:
                continue
            if known is None:
                self._virtual[name] = _Moving(now, value)
                continue
            growth = max(0.0, value - known.value)
            known.set(now, known.value + growth, growth)
            node = self._pool.nodes.get(name)
            if growth and node is not None and not node.flows.backlog:
                node.flows.advance(node.flows.given + growth)

    def begin_tag(self, flow: Flow) -> _Tag:
        """A tenant that is new here begins at V, and counts what it is served here until the exchange says more."""
        tag = self._tags[flow] = _Tag(-inf, self.known_virtual(flow.node.name) or 0.0, flow.charged)
        return tag

    def set_tag(self, now: float, flow: Flow, tag: float, charged: float, elsewhere: float = 0.0) -> None:
        """The tag of a tenant as the exchange says, counting `charged` of what it was charged here. `elsewhere`: what
        other routers served it since the answer before.
        """
        known = self._tags.setdefault(flow, _Tag(now, tag, charged))
        known.set(now, tag, elsewhere)
        known.charged = charged

    def keep_tags(self, flows: Iterable[Flow]) -> None:
        """Forget the tags of all other tenants."""
        self._tags = {flow: self._tags[flow] for flow in flows if flow in self._tags}

    def set_turn(self, class_name: str, turn: float, served: float) -> None:
        """The turn of a class as the exchange says, counting `served` of this router."""
        self._turns[class_name] = turn, served

    def is_ahead(self, now: float) -> bool:
        """Whether every class with work is more than two quanta ahead of V."""
        waiting = [node for node in self._pool.nodes.values() if node.flows.backlog]
        limit = AHEAD_QUANTA * self._pool.quantum
        return bool(waiting) and all(self.level(now, node) > self.virtual(now, node.name) + limit for node in waiting)


def light_requests(flows: Iterable[Flow], is_light: IsLight) -> int:
    """Requests of light tenants that could start, up to MAX_WANTED."""
    count = 0
    for flow in flows:
        if is_light(flow):
            count += flow.backlog
            if count >= MAX_WANTED:
                return MAX_WANTED
    return count


def first_flows(node: ClassNode) -> list[Flow]:
    """The first MAX_FLOWS tenants that wait, about in the order of their turns."""
    new, now, following, later = node.flows.members_by_turn()
    return list(islice(chain(new, now, following, (flow for _, _, flow in later)), MAX_FLOWS))
