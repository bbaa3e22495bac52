"""The arithmetic of the exchange: what the routers of a pool add up in a store, as one function of the store's state.

    served, requests, tokens   sums over all routers, by tenant and class, since the store was empty
    served by class            likewise, over all tenants
    turn                       of a class: served by class / weight. A class that begins to wait after ACTIVE_FOR_S is
                               set to the lowest turn of those that wait, so that it saves nothing up
    asked                      work per second, fading with DEMAND_S on the store's clock
    active weight A            of the tenants that were active at any router within ACTIVE_S, by class
    tag                        of a tenant: served / weight, and at least V when it begins to wait
    V                          by class: the lowest tag of the tenants that wait from one report to the next, as routers
                               said within LEVEL_S; while none does, the highest tag that was served. It never falls

A call says what its router added since the call before, once: a report that was received already is answered and not
added again, and a report for another *run* of the store is not added at all. A store that restarts empty has a new run,
so its routers begin anew from what they read then, and nothing is charged twice.

Cost: O(rows of the report), whatever the number of routers. Bound: the tenants of the last FORGET_S
and the routers of the last FORGET_ROUTER_S.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from math import exp, inf
from typing import NamedTuple

from services.core.leases.messages import NEVER, Stamp
from services.core.pool import ACTIVE_FOR_S
from services.core.stats import DEMAND_S

LEVEL_S = 1.0
"""A router that has not called for so long does not count: neither its levels, nor itself."""
FORGET_S = 600.0
FORGET_ROUTER_S = 86_400.0
"""Until then a report that is sent again is added once, though its router was cut off meanwhile."""
FORGET_AT_ONCE = 100
"""Tenants that one call forgets, so that its cost is bounded."""


class UsageRow(NamedTuple):
    """One tenant in one class: what one router adds."""

    tenant: str
    class_name: str
    weight: float
    served: float = 0.0
    """Charges less refunds, in token-equivalents."""
    asked: float = 0.0
    """Work that it asked for, rejected or not, in token-equivalents."""
    requests: int = 0
    tokens: float = 0.0
    """What its rate limits have taken."""
    active: bool = False
    waits: bool = False
    """Requests of it could start, and no slot is free for them."""
    emptied: bool = False
    """It had nothing to start at some time since the last report."""


class ClassLevel(NamedTuple):
    """One class at one router."""

    class_name: str
    weight: float
    waits: bool
    """Whether it waits for a slot."""
    steady: float | None = None
    """The lowest tag of its tenants that wait from one report to the next, as the router knows it; None without any."""
    virtual: float | None = None
    """V as the router knows it, for a store that has forgotten it."""


class UsageReport(NamedTuple):
    """One call. `stamp` grows with each new set of rows; a set that was not answered is sent again with its stamp."""

    router: str
    stamp: Stamp
    run: str
    """The run of the store that the rows are for; empty before the first answer."""
    levels: tuple[ClassLevel, ...]
    """Of all classes."""
    rows: tuple[UsageRow, ...]


class UsageTotals(NamedTuple):
    """One tenant in one class: the sums over all routers."""

    tenant: str
    class_name: str
    served: float
    asked_per_s: float
    requests: int
    tokens: float
    tag: float = 0.0
    """Of start-time fair queueing (`level.py`), in tokens per unit of weight."""


class UsageAnswer(NamedTuple):
    """The answer of one call."""

    run: str
    stamp: Stamp
    """Of the report."""
    added: bool
    """Whether the rows count: now, or since they were sent before."""
    routers: int
    """Routers that called lately, this one included."""
    totals: tuple[UsageTotals, ...]
    """Of the tenants of the report's rows, in their order."""
    classes: tuple[tuple[str, float, float], ...]
    """By class: what all its tenants were served, and its turn."""
    weights: tuple[tuple[str, float], ...]
    """By class: the active weight A."""
    virtual: tuple[tuple[str, float], ...]
    """By class: V."""


class _Sums:
    """What is known of one tenant in one class."""

    __slots__ = ("asked", "asked_at", "received_at", "requests", "served", "steady_at", "tag", "tokens")

    def __init__(self, now: float) -> None:
        self.served = self.tokens = self.asked = self.tag = 0.0
        self.requests = 0
        self.asked_at = self.received_at = now
        self.steady_at = -inf
        """When it last waited at a router from one report to the next."""


class UsageExchange:
    """The state of the store for one pool. `run` is its own random name."""

    __slots__ = ("_active", "_classes", "_levels", "_stamps", "_sums", "_turns", "_virtual", "_waiting", "run")

    def __init__(self, run: str) -> None:
        self.run = run
        self._sums: OrderedDict[tuple[str, str], _Sums] = OrderedDict()  # the longest unchanged first
        self._active: dict[str, OrderedDict[str, tuple[float, float]]] = {}  # class: tenant: weight, active at
        self._levels: dict[str, tuple[float, tuple[ClassLevel, ...]]] = {}  # router: when, and what it said
        self._stamps: dict[str, tuple[float, Stamp]] = {}  # router: when it called, and its last report
        self._classes: dict[str, float] = {}
        self._turns: dict[str, float] = {}
        self._waiting: dict[str, float] = {}  # class: when it waited last
        self._virtual: dict[str, float] = {}

    def call(self, now: float, report: UsageReport) -> UsageAnswer:
        """Add a report, and answer with the sums. `now` is the store's clock."""
        added = report.run == self.run
        _, known = self._stamps.get(report.router, (now, NEVER))
        self._stamps[report.router] = now, max(known, report.stamp) if added else known
        self._levels[report.router] = now, report.levels
        for router in [router for router, (at, _) in self._levels.items() if now - at > LEVEL_S]:
            del self._levels[router]
        steady = self._advance(report)
        if added and report.stamp > known:
            weights = {each.class_name: each.weight for each in report.levels}
            for row in report.rows:
                self._add(now, row, weights.get(row.class_name, 1.0))
            self._follow(report.rows, steady)
        for row in report.rows:
            if row.active:
                of_class = self._active.setdefault(row.class_name, OrderedDict())
                of_class[row.tenant] = row.weight, now
                of_class.move_to_end(row.tenant)
        self._forget(now)
        self._begin_waiting(now, self._waiting_now())
        return UsageAnswer(
            self.run,
            report.stamp,
            added,
            len(self._levels),
            tuple([self._totals(now, row) for row in report.rows]),
            tuple([(name, served, self._turns[name]) for name, served in sorted(self._classes.items())]),
            tuple([(name, self._weight(name)) for name in sorted(self._active)]),
            tuple(sorted(self._virtual.items())),
        )

    def _begin_waiting(self, now: float, waiting: Iterable[str]) -> None:
        """A class that has not waited for ACTIVE_FOR_S saves nothing up. Shorter pauses are between two reports."""
        for name in [name for name, at in self._waiting.items() if now - at > ACTIVE_FOR_S]:
            del self._waiting[name]
        for name in waiting:
            if name not in self._waiting:
                lowest = min([self._turns.get(other, 0.0) for other in self._waiting], default=0.0)
                self._turns[name] = max(self._turns.get(name, 0.0), lowest)
                self._classes.setdefault(name, 0.0)
            self._waiting[name] = now

    def _add(self, now: float, row: UsageRow, class_weight: float) -> None:
        key = row.tenant, row.class_name
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = _Sums(now)
        self._sums.move_to_end(key)
        sums.served += row.served
        self._classes[row.class_name] = self._classes.get(row.class_name, 0.0) + row.served
        self._turns[row.class_name] = self._turns.get(row.class_name, 0.0) + row.served / class_weight
        sums.requests += row.requests
        sums.tokens += row.tokens
        sums.asked = sums.asked * exp((sums.asked_at - now) / DEMAND_S) + row.asked
        sums.asked_at = sums.received_at = now
        sums.tag += row.served / row.weight
        if row.waits and now - sums.steady_at > LEVEL_S:  # it saves nothing up before it waits, nor in short waits
            sums.tag = max(sums.tag, self._virtual.get(row.class_name, 0.0))
        if row.waits and not row.emptied:
            sums.steady_at = now

    def _advance(self, report: UsageReport) -> Collection[str]:
        """V goes on. Returns the classes in which somebody waits steadily."""
        lowest: dict[str, float] = {}
        for _, levels in self._levels.values():
            for each in levels:
                if each.steady is not None:
                    lowest[each.class_name] = min(lowest.get(each.class_name, each.steady), each.steady)
        for each in report.levels:
            if each.virtual is not None:
                self._raise(each.class_name, each.virtual)
        for name, tag in lowest.items():
            self._raise(name, tag)
        return lowest

    def _follow(self, rows: Sequence[UsageRow], steady: Collection[str]) -> None:
        """V goes on with what is served in classes in which nobody waits steadily."""
        for row in rows:
            if row.served > 0 and row.class_name not in steady:
                self._raise(row.class_name, self._sums[row.tenant, row.class_name].tag)

    def _raise(self, name: str, virtual: float) -> None:
        self._virtual[name] = max(self._virtual.get(name, virtual), virtual)

    def _totals(self, now: float, row: UsageRow) -> UsageTotals:
        sums = self._sums.get((row.tenant, row.class_name)) or _Sums(now)
        asked_per_s = sums.asked * exp((sums.asked_at - now) / DEMAND_S) / DEMAND_S
        return UsageTotals(row.tenant, row.class_name, sums.served, asked_per_s, sums.requests, sums.tokens, sums.tag)

    def _weight(self, class_name: str) -> float:
        return sum([weight for weight, _ in self._active[class_name].values()], 0.0)

    def _waiting_now(self) -> list[str]:
        """The classes that wait at any router."""
        return sorted({each.class_name for _, levels in self._levels.values() for each in levels if each.waits})

    def _forget(self, now: float) -> None:
        for of_class in self._active.values():
            while of_class and now - next(iter(of_class.values()))[1] > ACTIVE_FOR_S:
                of_class.popitem(last=False)
        for name in [name for name, of_class in self._active.items() if not of_class]:
            del self._active[name]
        for router in [router for router, (at, _) in self._stamps.items() if now - at > FORGET_ROUTER_S]:
            del self._stamps[router]
        for _ in range(FORGET_AT_ONCE):
            if not self._sums or now - next(iter(self._sums.values())).received_at <= FORGET_S:
                return
            self._sums.popitem(last=False)

    def __repr__(self) -> str:
        return f"<UsageExchange {self.run}: {len(self._sums)} tenants, {len(self._levels)} routers>"
