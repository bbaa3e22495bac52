"""Whatever comes, starts, ends, leaves and expires, in whatever order: what the scheduler promises holds.

The gap, at each level, between g with work over a whole interval and any other f, W being actual cost by start:

    W_f/w_f - W_g/w_g <= 2 Q + (C + E_f)/w_f + (C + E_g)/w_g

C is the largest estimate, E the most by which what was in flight was estimated too high, plus too low.

Proof: let D be a member's deficit as if all that it has in flight had been charged at its actual cost. Then W over the
interval is the quanta given less what D rose by, and D stays above -(C + E), since a start needs a deficit above 0, and
at or below Q w + E, since whoever has a positive deficit gets no second quantum before it is served. A pause only
lowers D. (The machine switches off cap and half-life, which forgive debt on purpose.)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.discipline import DrrDiscipline, FifoDiscipline
from services.core.drr import FORGET_AFTER_S, Drr
from services.core.pool import Flow, PoolQueue
from services.core.request import Request, Stage
from services.core.ring import Ring
from services.core.schedulable import RingPosition, Schedulable
from tests.core.rig import asking, charged_so_far, kept

POOLS = ("one", "two")
CLASSES = (ClassSpec("gold", 2.0), ClassSpec("tin", 1.0, floor=0.4))
TENANTS = {"a": (1.0, "gold"), "b": (3.0, "gold"), "c": (0.5, "gold"), "d": (1.0, "tin"), "e": (1.0, "tin")}
OWN = QueueBounds(25, cost_tokens=2000.0, bytes=100)
ALL = QueueBounds(60, cost_tokens=5000.0, bytes=300)

costs = st.sampled_from([0.0, 1.0, 10.0, 50.0, 300.0]) | st.floats(0, 300)
shares = st.sampled_from([0.0, 0.5, 1.0])


@dataclass
class Watched:
    """One member of a ring, as the gap is measured: work by start, and what is in flight."""

    member: Schedulable
    work: float = 0.0
    largest: float = 0.0
    too_high: float = 0.0
    too_low: float = 0.0
    flights: dict[Request, tuple[float, float]] = field(default_factory=dict)

    def starts(self, request: Request, actual: float) -> None:
        self.work += actual
        charged = charged_so_far(request)
        self.largest = max(self.largest, charged)
        self.flights[request] = (charged, actual)
        self.look()

    def look(self) -> None:
        errors = [charged - actual for charged, actual in self.flights.values()]
        self.too_high = max(self.too_high, sum(error for error in errors if error > 0))
        self.too_low = max(self.too_low, -sum(error for error in errors if error < 0))

    @property
    def slack(self) -> float:
        return (self.largest + self.too_high + self.too_low) / self.member.weight

    @property
    def normal(self) -> float:
        return self.work / self.member.weight


class Scheduling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.requests: list[Request] = []
        self.actual: dict[Request, float] = {}
        self.used: dict[str, float] = defaultdict(float)
        self.ended: set[Request] = set()
        self.watched: dict[Schedulable, Watched] = {}
        self.least_ahead: dict[tuple[Schedulable, Schedulable], float] = {}
        self.strangers = 0

    @initialize(quantum=st.sampled_from([0.5, 10.0, 100.0, 5000.0]))
    def open(self, quantum: float) -> None:
        self.quantum = quantum
        self.drr = Drr(quantum=quantum, bounds=ALL, classes=CLASSES, idle_tenants=2)
        for pool in POOLS:
            for ring in self.rings(self.drr.pool(pool)):
                ring.debt_quanta = ring.debt_half_life_s = 1e18
        for tenant, (weight, name) in TENANTS.items():
            self.drr.configure(TenantSpec(tenant, OWN, weight=weight, class_name=name))

    def rings(self, pool: PoolQueue) -> list[Ring[Any]]:
        return [pool.classes, *(node.flows for node in pool.nodes.values())]

    def watch(self, member: Schedulable) -> Watched:
        return self.watched.setdefault(member, Watched(member))

    def in_stage(self, stage: Stage) -> list[Request]:
        return [request for request in self.requests if request.stage is stage]

    # ---- what may happen

    @rule(
        tenant=st.sampled_from(list(TENANTS)),
        pool=st.sampled_from(POOLS),
        estimates=st.lists(costs, min_size=1, max_size=6),
        deferred=shares,
        actual=costs,
        slack=st.floats(0.1, 50.0),
        size=st.integers(0, 9),
        ready=st.booleans() | st.just(True),
    )
    def come(
        self,
        tenant: str,
        pool: str,
        estimates: list[float],
        deferred: float,
        actual: float,
        slack: float,
        size: int,
        ready: bool,
    ) -> None:
        for cost in estimates:
            request = asking(tenant, cost, deadline=self.now + slack, size=size, pool=pool, ready=ready)
            request.deferred_tokens = deferred * cost
            self.enqueue(request, actual)

    @rule(cost=costs, actual=costs)
    def a_stranger_comes(self, cost: float, actual: float) -> None:
        self.strangers += 1
        tenant = f"u{self.strangers % 4}"
        if tenant not in self.drr.tenants:
            self.drr.create_unconfigured(self.now, TenantSpec(tenant, OWN, class_name="tin"))
        self.enqueue(asking(tenant, cost, deadline=self.now + 20.0, pool="one"), actual)

    def enqueue(self, request: Request, actual: float) -> None:
        before = repr(self.drr), kept(self.drr)
        if self.drr.enqueue(self.now, request):
            assert (repr(self.drr), kept(self.drr)) == before
            assert request.stage is Stage.NEW
            return
        self.requests.append(request)
        self.actual[request] = actual

    @rule(pool=st.sampled_from(POOLS), times=st.integers(1, 12))
    def start(self, pool: str, times: int) -> None:
        for _ in range(times):
            self.start_one(pool)
            self.gaps_are_bounded()

    def start_one(self, pool: str) -> None:
        could = [request for request in self.in_stage(Stage.WAITING) if request.ready and request.pool == pool]
        request = self.drr.next(self.now, pool)
        assert (request is None) == (not could), "a slot is left empty only if nothing could start"
        if request is None:
            return
        if self.drr.discipline is DrrDiscipline:
            own = [other for other in could if other.tenant == request.tenant]
            assert request is min(own, key=lambda other: (other.deadline, other.sequence))
        else:
            assert request is min(could, key=lambda other: other.sequence)
        self.started(request)

    def started(self, request: Request) -> None:
        assert request.stage is Stage.RUNNING
        flow = self.drr.tenants[request.tenant].flows[request.pool]
        for member in (flow, flow.node):
            self.watch(member).starts(request, self.actual[request])

    @rule(pool=st.sampled_from(POOLS), room=st.integers(-1, 9))
    def start_what_fits(self, pool: str, room: int) -> None:
        heads = [flow.queue.first for flow in self.flows(pool) if flow.queue.first]
        if self.drr.discipline is FifoDiscipline:
            heads = [each for each in self.in_stage(Stage.WAITING) if each.ready and each.pool == pool]
        request = self.drr.next(self.now, pool, fits=lambda head: head.bytes <= room)
        assert (request is None) == all(head.bytes > room for head in heads)
        if request is None:
            before = self.all_standings(pool)
            assert self.drr.next(self.now, pool, fits=lambda head: head.bytes <= room) is None
            assert self.all_standings(pool) == before
            return
        assert request in heads
        self.started(request)
        self.least_ahead.clear()  # the bound is for those who could have run

    def all_standings(self, pool: str) -> list[tuple[float, RingPosition]]:
        return [(self.up_to_date(member), member.position) for member in self.members(pool)]

    def flows(self, pool: str) -> list[Flow]:
        return [tenant.flows[pool] for tenant in self.drr.tenants.values() if pool in tenant.flows]

    def members(self, pool: str) -> list[Schedulable]:
        return [*self.flows(pool), *self.drr.pools[pool].nodes.values()]

    def up_to_date(self, member: Schedulable) -> float:
        ring = member.node.flows if isinstance(member, Flow) else None
        if ring is None:
            ring = next(pool.classes for pool in self.drr.pools.values() if member in pool.nodes.values())
        return ring.deficit_at(self.now, member)

    @precondition(lambda self: self.in_stage(Stage.RUNNING))
    @rule(data=st.data(), how=st.sampled_from(["served", "cancelled", "failed"]))
    def end(self, data: st.DataObject, how: str) -> None:
        request = data.draw(st.sampled_from(self.in_stage(Stage.RUNNING)))
        self.drr.settle(self.now, request, self.actual[request])
        self.used[request.tenant] += self.actual[request]
        self.over(request)
        flow = self.drr.tenants[request.tenant].flows[request.pool]
        for member in (flow, flow.node):
            del self.watch(member).flights[request]
        with pytest.raises(RuntimeError):
            self.drr.settle(self.now, request, self.actual[request])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        waits = request.stage is Stage.WAITING
        before = repr(self.drr), request.stage
        assert self.drr.discard(self.now, request) is waits
        if waits:
            self.over(request)
        else:
            assert (repr(self.drr), request.stage) == before

    @rule(tenant=st.sampled_from(list(TENANTS)))
    def all_of_a_tenant_leave(self, tenant: str) -> None:
        for request in self.in_stage(Stage.WAITING):
            if request.tenant == tenant:
                assert self.drr.discard(self.now, request)
                self.over(request)

    @precondition(lambda self: self.in_stage(Stage.WAITING))
    @rule(data=st.data())
    def retrieval_ends(self, data: st.DataObject) -> None:
        self.drr.make_ready(self.now, data.draw(st.sampled_from(self.in_stage(Stage.WAITING))))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), cost=costs)
    def a_prompt_is_counted(self, data: st.DataObject, cost: float) -> None:
        request = data.draw(st.sampled_from(self.requests))
        if request.stage is Stage.WAITING and cost > request.charge_tokens:
            return  # it may take its tenant over its bound, and that is not what this machine asks
        before = request.charge_tokens
        self.drr.reprice(self.now, request, cost)
        assert request.charge_tokens == (before if request.stage is Stage.ENDED else cost)
        for watched in self.watched.values():
            if request in watched.flights:
                watched.flights[request] = (charged_so_far(request), self.actual[request])
                watched.look()
                self.least_ahead.clear()

    @rule(in_turns=st.booleans())
    def switch(self, in_turns: bool) -> None:
        """Turns, or the order of arrival. The bound is for turns, and counts from when they begin."""
        waiting = self.in_stage(Stage.WAITING)
        self.drr.serve_by(self.now, DrrDiscipline if in_turns else FifoDiscipline)
        self.least_ahead.clear()
        assert set(self.drr.waiting()) == set(waiting)

    @rule(passes=st.sampled_from([0.0, 0.01, 1.0, 30.0]))
    def time_passes(self, passes: float) -> None:
        self.now += passes
        due = {request for request in self.in_stage(Stage.WAITING) if request.expires_at <= self.now}
        expired = self.drr.expire(self.now)
        assert set(expired) == due
        assert [request.expires_at for request in expired] == sorted(request.expires_at for request in expired)
        for request in expired:
            self.over(request)
        for pool in self.drr.pools.values():
            pool.release_idle(self.now)
        self.drr.forget_idle(self.now)

    def over(self, request: Request) -> None:
        assert request not in self.ended
        assert request.stage is Stage.ENDED
        self.ended.add(request)
        self.drr.forget_idle(self.now)

    # ---- what holds at any time

    @invariant()
    def gaps_are_bounded(self) -> None:
        if self.drr.discipline is FifoDiscipline:
            return
        for pool in self.drr.pools.values():
            for ring in self.rings(pool):
                members = [member for member in self.watched if self.ring_of(pool, member) is ring]
                for g in members:
                    for f in members:
                        if f is not g:
                            self.check_gap(f, g)

    def ring_of(self, pool: PoolQueue, member: Schedulable) -> Ring[Any] | None:
        if isinstance(member, Flow):
            return member.node.flows if pool.nodes[member.node.name] is member.node else None
        return pool.classes if member in pool.nodes.values() else None

    def check_gap(self, f: Schedulable, g: Schedulable) -> None:
        """Over the interval in which g has had work so far, f is not ahead by more than the bound."""
        if not g.backlog:
            self.least_ahead.pop((f, g), None)
            return
        ahead = self.watch(f).normal - self.watch(g).normal
        least = self.least_ahead[f, g] = min(ahead, self.least_ahead.get((f, g), inf))
        bound = 2 * self.quantum + self.watch(f).slack + self.watch(g).slack
        assert ahead - least <= bound * 1.00001 + 1e-6, f"{f} is {ahead - least} ahead of {g}, bound {bound}"

    @invariant()
    def bounds_hold_in_all_three_units(self) -> None:
        waiting = self.in_stage(Stage.WAITING)
        for usage, bounds, held in [
            (self.drr.usage, ALL, waiting),
            *(
                (tenant.usage, OWN, [request for request in waiting if request.tenant == tenant.id])
                for tenant in self.drr.tenants.values()
            ),
        ]:
            assert usage.requests == len(held) <= bounds.requests
            assert usage.cost_tokens == pytest.approx(sum(request.charge_tokens for request in held), abs=1e-6)
            assert usage.cost_tokens <= bounds.cost_tokens + 1e-6
            assert usage.bytes == sum(request.bytes for request in held) <= bounds.bytes

    @invariant()
    def the_sums_equal_a_recount(self) -> None:
        for pool in self.drr.pools.values():
            waiting = [request for request in self.in_stage(Stage.WAITING) if request.pool == pool.name]
            flows = self.flows(pool.name)
            assert pool.requests == len(waiting)
            assert pool.work == pytest.approx(sum(request.charge_tokens for request in waiting), abs=1e-6)
            round_work = sum(min(self.quantum * flow.weight, flow.work) for flow in flows)
            assert pool.round_work == pytest.approx(round_work, abs=1e-6)
            for node in pool.nodes.values():
                active = [flow for flow in flows if flow.active and flow.node is node]
                assert node.active_flows >= len(active)
                assert node.backlog == node.flows.backlog == sum(flow.backlog for flow in flows if flow.node is node)
            assert pool.classes.backlog == sum(request.ready for request in waiting)
            active_classes = [node for node in pool.nodes.values() if node.active_flows]
            assert pool.active_weight == pytest.approx(sum(node.weight for node in active_classes), abs=1e-9)
            assert pool.active_flows == sum(node.active_flows for node in pool.nodes.values())

    @invariant()
    def those_in_a_ring_are_those_with_work(self) -> None:
        for pool in self.drr.pools.values():
            for member in self.members(pool.name):
                assert (member.position is RingPosition.OUT) == (member.backlog == 0)
            for ring in self.rings(pool):
                live = sum(ring._awaited(entry) for entry in ring._later)
                assert len(ring._later) <= 2 * live + 2 * 64 + 2

    @invariant()
    def nobody_away_has_saved_more_than_a_quantum(self) -> None:
        for pool in self.drr.pools:
            for member in self.members(pool):
                if member.position is RingPosition.OUT:
                    assert self.up_to_date(member) <= self.quantum * member.weight

    @invariant()
    def what_was_charged_is_what_was_used_and_what_is_in_flight(self) -> None:
        flying: dict[str, float] = defaultdict(float)
        for request in self.in_stage(Stage.RUNNING):
            flying[request.tenant] += charged_so_far(request)
        for tenant in self.drr.tenants.values():
            if tenant.configured:
                assert tenant.charged == pytest.approx(self.used[tenant.id] + flying[tenant.id], abs=1e-6)
            unsettled = sum(flow.unsettled for flow in tenant.flows.values())
            assert unsettled == pytest.approx(flying[tenant.id], abs=1e-6)

    @invariant()
    def the_next_wake_up_is_the_first_expiry(self) -> None:
        assert self.drr.wakes_at() == min((r.expires_at for r in self.in_stage(Stage.WAITING)), default=inf)
        assert len(self.drr._expiries) <= 2 * self.drr.usage.requests + 66

    @invariant()
    def strangers_are_few(self) -> None:
        busy = sum(tenant.busy for tenant in self.drr.tenants.values())
        assert len(self.drr.tenants) <= len(TENANTS) + busy + 3

    # ---- and at the end

    def teardown(self) -> None:
        if not hasattr(self, "drr"):
            return
        for request in self.in_stage(Stage.WAITING):
            self.drr.make_ready(self.now, request)
        for pool in POOLS:
            while request := self.drr.next(self.now, pool):
                assert request in self.actual
        for request in self.in_stage(Stage.RUNNING):
            self.drr.settle(self.now, request, self.actual[request])
            self.used[request.tenant] += self.actual[request]
            self.over(request)
        assert self.ended == set(self.requests)
        for tenant in TENANTS:
            assert self.drr.tenants[tenant].charged == pytest.approx(self.used[tenant], abs=1e-6)
            assert not self.drr.tenants[tenant].busy
        self.now += FORGET_AFTER_S + 1.0  # times are floats: (now + 300) - now may be a little less than 300
        self.drr.expire(self.now)
        self.drr.forget_idle(self.now)
        for pool in self.drr.pools.values():
            pool.release_idle(self.now)
        left = kept(self.drr)
        assert left.pop("tenants") == len(TENANTS)
        left.pop("expiries", None)  # stale ones, bounded above
        assert left == {}


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=100, stateful_step_count=40)
