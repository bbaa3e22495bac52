"""One router's side of the exchange: what it reports of its tenants, and what it charges them for other routers.

    elsewhere = served by all - reported by this router

A report that was not answered is sent again as it was; what comes up meanwhile waits for the next one. The first
figures of a run of the store are where this router begins: nothing before them counts. The same holds for a tenant
that was not reported for FORGET_S.

A class is charged for what others served it, at most MAX_QUANTA at once (`Ring.inherit_debt`). A tenant has a part of
its weight here, and a debt that follows its tag (`parts.py`).

Cost: O(tenants that this router knows) for each report, off the path of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from math import exp, nan
from typing import NamedTuple

from services.core.drr import Drr
from services.core.elsewhere import Elsewhere
from services.core.leases.exchange import ClassLevel, UsageAnswer, UsageReport, UsageRow, UsageTotals
from services.core.leases.level import PoolLevel
from services.core.leases.messages import Stamp, Want
from services.core.leases.parts import MAX_QUANTA, Parts
from services.core.pool import Flow, PoolQueue
from services.core.stats import DEMAND_S

MAX_ROWS = 1000
"""Tenants in one report: what a store adds up within a call's time limit. More are reported in turn."""
FORGET_S = 60.0
"""A tenant that was not reported for so long begins anew: the half-life of its debt."""
QUIET = 1e-6
"""Work in tokens that is not worth a row."""

Key = tuple[str, str]
"""(tenant, class)"""


class UsedElsewhere(NamedTuple):
    """What other routers took from a tenant's rate limits since the last exchange."""

    tenant: str
    class_name: str
    requests: int
    tokens: float


class _Entry:
    """One tenant in one class, as this router and the store know it."""

    __slots__ = ("asked", "asked_at", "charged", "flow", "own", "reported_at", "seen", "taken", "waited")

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.charged = 0.0
        """Of `flow.charged`: what was put into a report."""
        self.asked = 0.0
        self.asked_at = 0.0
        """What it asked for, as reported, fading."""
        self.own = UsageTotals("", "", 0.0, 0.0, 0, 0.0)
        """What this router has added to the store in this run."""
        self.seen: UsageTotals | None = None
        """What other routers had added at the last answer of this run."""
        self.taken = (0, 0.0)
        """Requests and tokens of its rate limits, for the next report."""
        self.reported_at = 0.0
        self.waited = False
        """At the last report."""


class UsageLedger:
    """One pool's tenants at one router, and what the store adds up of them."""

    __slots__ = (
        "_active",
        "_classes",
        "_drr",
        "_entries",
        "_epoch",
        "_level",
        "_parts",
        "_pending",
        "_pool",
        "_run",
        "_sequence",
        "_steady",
        "elsewhere",
        "router",
        "routers",
    )

    def __init__(
        self,
        router: str,
        epoch: int,
        drr: Drr,
        pool: PoolQueue,
        level: PoolLevel,
        pool_slots: Callable[[], int],
    ) -> None:
        """`pool_slots` returns the slots of all workers of the pool, whoever uses them."""
        self.router = router
        self.routers = 1
        """Routers that share the pool, as the last answer says."""
        self.elsewhere = pool.elsewhere = Elsewhere(pool_slots)
        self._drr = drr
        self._pool = pool
        self._level = level
        self._parts = Parts(pool, level)
        self._epoch = epoch
        self._sequence = 0
        self._run = ""
        self._entries: dict[Key, _Entry] = {}
        self._pending: tuple[Stamp, str, tuple[UsageRow, ...], dict[str, float]] | None = None
        self._active: dict[str, list[Flow]] = {}  # by class: those that were active at the last report
        self._steady: dict[str, float] = {}
        self._classes: dict[str, list[float]] = {}  # by class: own in this run, and others' that was charged

    # ---- what is reported

    def add_taken(self, flow: Flow, requests: int, tokens: float) -> None:
        """The tenant's rate limits have taken this much at this router."""
        entry = self._entry(flow)
        entry.taken = entry.taken[0] + requests, entry.taken[1] + tokens

    def report(self, now: float, wants: tuple[Want, ...]) -> UsageReport:
        """The next call. `wants` is what waits for a slot; empty if nothing does."""
        waiting = {want.class_name for want in wants}
        if self._pending is None:
            self._sequence += 1
            served = {name: node.flows.served for name, node in self._pool.nodes.items()}
            self._pending = (self._epoch, self._sequence), self._run, self._rows(now, waiting), served
        stamp, _, rows, _ = self._pending
        levels = [
            ClassLevel(name, node.weight, name in waiting, self._steady.get(name), self._level.known_virtual(name))
            for name, node in self._pool.nodes.items()
        ]
        return UsageReport(self.router, stamp, self._run, tuple(levels), rows)

    def _rows(self, now: float, waiting: Collection[str]) -> tuple[UsageRow, ...]:
        """What has changed, or is active; of more than MAX_ROWS the first are those that waited longest."""
        self._active, self._steady = {}, {}
        flows = [flow for tenant in self._drr.tenants.values() for flow in tenant.flows_in(self._pool.name)]
        for flow in flows:
            if flow.active:
                self._active.setdefault(flow.node.name, []).append(flow)
        if len(flows) > MAX_ROWS:
            flows.sort(key=self._reported_at)
        rows = (row for flow in flows if (row := self._row(now, flow, flow.node.name in waiting)) is not None)
        return tuple(islice(rows, MAX_ROWS))

    def _reported_at(self, flow: Flow) -> float:
        return self._entry(flow).reported_at

    def _row(self, now: float, flow: Flow, class_waits: bool) -> UsageRow | None:
        entry = self._entry(flow)
        served = flow.charged - entry.charged
        before = entry.asked * exp((entry.asked_at - now) / DEMAND_S)
        asked = max(0.0, flow.stats.asked.rate(now) * DEMAND_S - before)
        requests, tokens = entry.taken
        if not (flow.active or requests or abs(served) > QUIET or asked > QUIET or abs(tokens) > QUIET):
            return None
        if now - entry.reported_at > FORGET_S:
            entry.seen = None
        waits, emptied = class_waits and flow.backlog > 0, not entry.waited or flow.left_at > entry.reported_at
        if waits and not emptied:
            tag = self._level.tag(now, flow)
            self._steady[flow.node.name] = min(self._steady.get(flow.node.name, tag), tag)
        entry.charged, entry.taken, entry.reported_at, entry.waited = flow.charged, (0, 0.0), now, waits
        entry.asked, entry.asked_at = before + asked, now
        return UsageRow(
            flow.tenant.id,
            flow.node.name,
            flow.tenant.weight,
            served,
            asked,
            requests,
            tokens,
            flow.active,
            waits,
            emptied,
        )

    def _entry(self, flow: Flow) -> _Entry:
        key = flow.tenant.id, flow.node.name
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(flow)
            self._level.begin_tag(flow)
        elif entry.flow is not flow:  # its tenant was forgotten, and came back
            entry.flow, entry.charged, entry.asked, entry.waited = flow, 0.0, 0.0, False
            self._level.begin_tag(flow)
        return entry

    # ---- what is charged

    def receive(self, now: float, answer: UsageAnswer) -> list[UsedElsewhere]:
        """Charge what other routers served. Returns what the rate limits are to be charged with.

        An answer to an earlier report changes nothing.
        """
        if self._pending is None or answer.stamp != self._pending[0]:
            return []
        if answer.run != self._run:
            self._begin_run(answer.run)
        elif answer.added:
            _, _, rows, served = self._pending
            for row in rows:
                self._count_own(row)
            for name, _, turn in answer.classes:
                self._level.set_turn(name, turn, served.get(name, 0.0))
            self._pending = None
        self.routers = answer.routers
        asked: dict[Key, float] = {}
        used: list[UsedElsewhere] = []
        for totals in answer.totals:
            key = totals.tenant, totals.class_name
            entry = self._entries.get(key)
            if entry is None:
                continue
            own_asked_per_s = entry.asked * exp((entry.asked_at - now) / DEMAND_S) / DEMAND_S
            asked[key] = max(0.0, totals.asked_per_s - own_asked_per_s)
            before = entry.seen
            if more := self._note(entry, totals):
                used.append(more)
            if answer.added:
                elsewhere = entry.seen.served - before.served if entry.seen and before else 0.0
                self._level.set_tag(now, entry.flow, totals.tag, entry.charged, elsewhere)
        for name, of_all, _ in answer.classes:
            self._charge_class(now, name, of_all)
        for key, asked_per_s in asked.items():
            self._parts.set(now, self._entries[key].flow, asked_per_s)
        self.elsewhere.receive(
            now, asked, {name: self._weight_elsewhere(name, of_all) for name, of_all in answer.weights}
        )
        self._level.receive(now, dict(answer.virtual))
        self._parts.align(now)
        self._forget(now)
        return used

    def forget_stale(self, now: float) -> None:
        """Now and then: without news each tenant counts in full here."""
        if not self.elsewhere.is_fresh(now):
            self._parts.forget(now)

    def _weight_elsewhere(self, class_name: str, of_all: float) -> float:
        """The active weight of a class that is not at this router."""
        return max(0.0, of_all - sum([flow.weight for flow in self._active.get(class_name, ())]))

    def _begin_run(self, run: str) -> None:
        """The store is new to this router, or has lost what it had: begin from what it says next.

        A report that was sent to an earlier run may have been added there, so it is dropped: nothing is charged twice.
        """
        if self._pending is not None and self._pending[1]:
            self._pending = None
        elif self._pending is not None:
            stamp, _, rows, served = self._pending
            self._pending = stamp, run, rows, served
        self._run = run
        self._classes.clear()
        for entry in self._entries.values():
            entry.own, entry.seen = UsageTotals("", "", 0.0, 0.0, 0, 0.0), None

    def _count_own(self, row: UsageRow) -> None:
        self._classes.setdefault(row.class_name, [0.0, nan])[0] += row.served
        entry = self._entries.get((row.tenant, row.class_name))
        if entry is not None:
            own = entry.own
            entry.own = own._replace(
                served=own.served + row.served, requests=own.requests + row.requests, tokens=own.tokens + row.tokens
            )

    def _note(self, entry: _Entry, totals: UsageTotals) -> UsedElsewhere | None:
        """What other routers have added of the tenant since the last answer."""
        own, before = entry.own, entry.seen
        seen = entry.seen = totals._replace(
            served=totals.served - own.served,
            requests=totals.requests - own.requests,
            tokens=totals.tokens - own.tokens,
        )
        if before is None:
            return None
        requests, tokens = seen.requests - before.requests, seen.tokens - before.tokens
        if requests or abs(tokens) > QUIET:
            return UsedElsewhere(totals.tenant, totals.class_name, requests, tokens)
        return None

    def _charge_class(self, now: float, name: str, served: float) -> None:
        known = self._classes.setdefault(name, [0.0, nan])
        elsewhere = served - known[0]
        cost, known[1] = elsewhere - known[1], elsewhere
        node = self._pool.nodes.get(name)
        if node is not None and abs(cost) > QUIET:  # not in the first answer of a run: nan
            limit = MAX_QUANTA * self._pool.quantum * node.weight
            self._pool.charge_class_elsewhere(now, node, max(-limit, min(limit, cost)))

    def _forget(self, now: float) -> None:
        if len(self._entries) > 2 * len(self._drr.tenants) + 64:
            known = self._drr.tenants
            self._entries = {
                key: entry for key, entry in self._entries.items()
                if entry.flow.tenant is known.get(key[0]) or now - entry.reported_at <= FORGET_S
            }  # fmt: skip
            flows = {entry.flow for entry in self._entries.values()}
            self._level.keep_tags(flows)
            self._parts.keep(flows)

    def __repr__(self) -> str:
        return f"<UsageLedger of {self.router}, run {self._run or 'unknown'}: {len(self._entries)} tenants>"
