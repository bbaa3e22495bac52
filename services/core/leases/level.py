"""How far a router's rings have come, on one clock for all routers of a pool.

    level = given + offset             of the ring of tenants in one class, `given` being its virtual time (`ring.py`)
    V     = the lowest level of the routers that wait in this class
    turn  = what the class was served by all routers / its weight

Rings are charged for what is served elsewhere, so `given` goes on at the rate of the whole pool, at a router that
serves a tenant's every request as at one that serves half of them. A router that begins to wait is set to V: it
saves nothing up while it has no work (start-time fair queueing; DSFQ, FAST 2007). A ring without work follows V, or
the debts of its tenants would stand still while the others' are paid. A router that is more than two quanta ahead of V
has used slots that others should have had.

The exchange counts the turns of the classes, and each router adds what it has served since: a class has one turn, at
whichever routers it waits, as a position in one of their rings would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import inf

from services.core.leases.messages import Want
from services.core.pool import ClassNode, Flow, PoolQueue

MAX_WANTED = 64
"""Requests of one class that a router asks slots for at once."""
MAX_FLOWS = 64
"""Tenants of one class that are asked whether they are below their share, in the order of their turns."""
AHEAD_QUANTA = 2.0

NO_RETRIES: Mapping[str, int] = {}

IsLight = Callable[[Flow], bool]
"""Whether the flow's tenant asks for less than its share of the pool."""


class CommonClock:
    """One ring of one router on the common clock."""

    __slots__ = ("_offset", "_waits", "lowest")

    def __init__(self) -> None:
        self.lowest = -inf
        """V, the lowest level of the routers that wait; it never falls."""
        self._offset = 0.0
        self._waits = False

    def wait(self, virtual: float) -> float:
        """The level of a ring with this virtual time, that has work and no slot for it."""
        if not self._waits:
            self._waits = True
            self._offset = max(self._offset, self.lowest - virtual)
        return virtual + self._offset

    def rest(self) -> None:
        """The ring has nothing that waits for a slot."""
        self._waits = False

    def level(self, virtual: float) -> float:
        return virtual + self._offset

    def virtual(self, level: float) -> float:
        """The virtual time of the ring at this level."""
        return level - self._offset

    def receive(self, lowest: float) -> None:
        """The lowest level, as the exchange or a worker says."""
        if self.lowest < lowest < inf:
            self.lowest = lowest


class PoolLevel:
    """The rings of one pool at one router, on the common clock, and what waits in them."""

    __slots__ = ("_clocks", "_pool", "_turns")

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool
        self._clocks: dict[str, CommonClock] = {}
        self._turns: dict[str, tuple[float, float]] = {}  # by class: its turn, and what was served here by then

    def wants(self, is_light: IsLight, retries: Mapping[str, int] = NO_RETRIES) -> tuple[Want, ...]:
        """What waits in each class and could start. Call it only while no slot is free: it marks the classes as
        waiting. `retries`, by class, wait beside the rings, and before all others.
        """
        found: list[Want] = []
        for node in self._pool.nodes.values():
            ring, clock, first = node.flows, self.clock(node.name), retries.get(node.name, 0)
            if not ring.backlog and not first:
                clock.rest()
                continue
            light, level = min(MAX_WANTED, first + light_requests(node, is_light)), clock.wait(ring.given)
            found.append(Want(node.name, min(MAX_WANTED, first + ring.backlog), light, level, self.turn(node)))
        return tuple(found)

    def turn(self, node: ClassNode) -> float:
        """What the class was served by all routers, per unit of weight, with what this one served since."""
        turn, served = self._turns.get(node.name, (0.0, 0.0))
        return turn + max(0.0, node.flows.served - served) / node.weight

    def rest(self) -> None:
        """Nothing waits, or a slot is free for it."""
        for clock in self._clocks.values():
            clock.rest()

    def receive(self, lowest: Mapping[str, float]) -> None:
        """V of each class. Rings without work go on to it."""
        for name, level in lowest.items():
            clock = self.clock(name)
            clock.receive(level)
            node = self._pool.nodes.get(name)
            if node is not None and not node.flows.backlog:
                node.flows.advance(clock.virtual(clock.lowest))

    def set_turn(self, class_name: str, turn: float, served: float) -> None:
        """The turn of a class as the exchange says, counting `served` of this router."""
        self._turns[class_name] = turn, served

    def is_ahead(self) -> bool:
        """Whether every class with work is more than two quanta ahead of V."""
        waiting = [node for node in self._pool.nodes.values() if node.flows.backlog]
        limit = AHEAD_QUANTA * self._pool.quantum
        return bool(waiting) and all(
            self.clock(node.name).level(node.flows.given) > self.clock(node.name).lowest + limit for node in waiting
        )

    def clock(self, class_name: str) -> CommonClock:
        clock = self._clocks.get(class_name)
        if clock is None:
            clock = self._clocks[class_name] = CommonClock()
        return clock


def light_requests(node: ClassNode, is_light: IsLight) -> int:
    """Requests of light tenants that could start, up to MAX_WANTED, of the first MAX_FLOWS tenants."""
    count = 0
    for flow in _first_flows(node):
        if is_light(flow):
            count += flow.backlog
            if count >= MAX_WANTED:
                return MAX_WANTED
    return count


def _first_flows(node: ClassNode) -> Iterator[Flow]:
    new, now, following, later = node.flows.members_by_turn()
    flows = chain(new, now, following, (flow for _, _, flow in later))
    return (flow for _, flow in zip(range(MAX_FLOWS), flows, strict=False))
