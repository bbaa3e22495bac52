"""What a machine has been told of its requests, and what must hold in a Weir whatever it was told."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admissioncheck import Rejection
from services.core.choices import SchedulerSettings
from services.core.discipline import DrrDiscipline, FifoDiscipline
from services.core.estimator import ENOUGH
from services.core.policies import Policies
from services.core.request import Request, Stage
from services.core.scheduler import Scheduler
from tests.core.rig import charged_so_far

ORDER = list(Stage)
POOLS = ("default", "other")
KNOWN = {
    "gold": TenantSpec("gold", QueueBounds(4, 4000, 900), weight=2.0, class_name="gold"),
    "plain": TenantSpec("plain", QueueBounds(6, 6000, 900)),
}
STRANGERS = [f"stranger-{number}" for number in range(7)]
PREFILL_S, TOKEN_S, PER_SLOT_S = 0.0002, 0.01, 300.0
IDLE_TENANTS = 2


class Books(RuleBasedStateMachine):
    scheduler: Scheduler
    settings: SchedulerSettings
    announced: bool

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.chance = 0
        self.slots = dict.fromkeys(POOLS, 0)
        self.stages: dict[Request, Stage] = {}
        self.at: dict[Stage, dict[Request, None]] = {stage: {} for stage in Stage}
        self.fates: dict[Request, str] = {}
        self.answers: dict[Request, int] = {}
        self.spent: dict[str, float] = {}
        self.specs: dict[str, TenantSpec] = {}
        self.ended = dict.fromkeys(POOLS, 0)
        self.memory = inf

    def random(self) -> float:
        self.chance += 1
        return self.chance * 0.618034 % 1.0

    def of(self, stage: Stage, pool: str | None = None, tenant: str | None = None) -> list[Request]:
        return [
            request for request in self.at[stage] if pool in (None, request.pool) and tenant in (None, request.tenant)
        ]

    def moves(self, request: Request, to: Stage) -> None:
        assert ORDER.index(to) > ORDER.index(self.stages[request])
        del self.at[self.stages[request]][request]
        self.stages[request] = to
        self.at[to][request] = None
        assert request.stage is to

    def ends(self, request: Request, fate: str) -> None:
        assert request not in self.fates, f"{request!r} was {self.fates[request]}, and now {fate}"
        self.fates[request] = fate

    # ---- who is known

    def bounds(self, tenant: str) -> QueueBounds:
        return self.specs.get(tenant, self.settings.unconfigured).bounds

    def configure(self, spec: TenantSpec) -> None:
        self.scheduler.configure(spec)
        if spec.id not in self.specs:  # it may have been a stranger until now
            running = sum(map(charged_so_far, self.of(Stage.RUNNING, tenant=spec.id)))
            self.spent[spec.id] = self.scheduler.drr.tenants[spec.id].charged - running
        self.specs[spec.id] = spec

    @rule(tenant=st.sampled_from([*KNOWN, STRANGERS[0]]), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def reweigh(self, tenant: str, weight: float) -> None:
        spec = self.specs.get(tenant) or KNOWN.get(tenant) or TenantSpec(tenant, self.settings.unconfigured.bounds)
        self.configure(replace(spec, weight=weight))

    @rule(
        kept=st.sets(st.sampled_from([*KNOWN, STRANGERS[0]])),
        class_name=st.sampled_from(["default", "gold"]),
        requests=st.sampled_from([1, 3, 6]),
        gold=st.sampled_from([0.5, 2.0, 4.0]),
        silver=st.booleans(),
    )
    def reload(self, kept: set[str], class_name: str, requests: int, gold: float, silver: bool) -> None:
        """What waits may be over new bounds for a while, but nothing more comes in."""
        specs = [TenantSpec(id, QueueBounds(requests, 6000, 900), 2.0, class_name) for id in sorted(kept)]
        classes = [ClassSpec("default", 1.0, 0.1), ClassSpec("gold", gold)] + [ClassSpec("silver")] * silver
        self.scheduler.reload(self.now, tuple(classes), specs)
        for id in set(self.specs) - kept:
            assert not self.scheduler.drr.tenants[id].configured if id in self.scheduler.drr.tenants else True
            del self.specs[id]
        for spec in specs:
            self.configure(spec)
            assert (self.scheduler.drr.tenants[spec.id].class_name, self.scheduler.drr.tenants[spec.id].weight) == (
                class_name,
                2,
            )

    @rule(class_name=st.sampled_from([None, "default", "gold"]), level=st.sampled_from([None, 0, 1, 4]))
    def hold_level(self, class_name: str | None, level: int | None) -> None:
        self.scheduler.hold_level(class_name, level)
        for name in [class_name] if class_name else ["default", "gold"]:
            assert self.scheduler.held(name) == level

    @property
    def policies(self) -> Policies:
        return self.scheduler.settings.policies

    @rule(admission=st.booleans(), fairness=st.booleans(), cancellation=st.booleans())
    def switch(self, admission: bool, fairness: bool, cancellation: bool) -> None:
        """Whoever waits keeps its place. Unjudged it expires only for its client's patience; judged, when it must."""
        waiting = self.of(Stage.WAITING)
        self.scheduler.switch(self.now, Policies(admission, fairness, cancellation))
        assert self.policies == Policies(admission, fairness, cancellation)
        assert all(each.stage is Stage.WAITING for each in waiting)
        for each in waiting:
            assert admission or each.expires_at == inf or each.expires_for == "patience"
            assert not admission or each.expires_at <= each.due_at

    def stands_in_its_class(self, request: Request) -> None:
        """In its tenant's own, or in one that weighs less and that it asked for."""
        classes = {spec.name: spec.weight for spec in self.scheduler.drr.classes}
        own = self.scheduler.drr.tenants[request.tenant].class_name
        floored = self.scheduler.drr.pools[request.pool].nodes
        asked = request.class_name if request.class_name in classes else own
        assert request.flow.node.name == (asked if floored[asked].weight < floored[own].weight else own)

    # ---- what always holds

    @invariant()
    def stages_are_as_told(self) -> None:
        for request, stage in self.stages.items():
            assert request.stage is stage
            assert (request in self.fates) == (stage in (Stage.NEW, Stage.ENDED))

    @invariant()
    def slots_are_counted(self) -> None:
        for pool, slots in self.slots.items():
            estimator = self.scheduler.pools[pool].estimator
            assert estimator.busy == len(self.of(Stage.RUNNING, pool))
            assert (estimator.slots, estimator.free) == (slots, max(0, slots - estimator.busy))
            assert (estimator.rate is None) or (isfinite(estimator.rate) and estimator.rate > 0)
            if self.announced and slots and self.ended[pool] < ENOUGH:
                assert estimator.rate == pytest.approx(PER_SLOT_S * slots)
            unread = [each for each in self.of(Stage.RUNNING, pool) if not each.first_token_at]
            assert estimator.unread_tokens == sum(each.read_tokens for each in unread)
            assert all(each.read_tokens > 0 for each in unread)
            next_slot_s = estimator.next_slot_s(self.now)
            assert isfinite(next_slot_s)
            assert next_slot_s >= 0
            assert len(estimator._ends) <= 64 + 2 * (estimator.busy + 4) + 1

    @invariant()
    def books_are_those_of_the_waiting(self) -> None:
        drr, waiting = self.scheduler.drr, self.of(Stage.WAITING)
        assert drr.usage.requests == len(waiting)
        assert drr.usage.bytes == sum(each.bytes for each in waiting)
        assert drr.usage.cost_tokens == pytest.approx(sum(each.charge_tokens for each in waiting))
        for name in POOLS:
            pool, here = drr.pools[name], self.of(Stage.WAITING, name)
            assert pool.requests == len(here)
            assert pool.work == pytest.approx(sum(each.charge_tokens for each in here))
            assert pool.unread_tokens == sum(each.read_tokens for each in here)
            assert pool.classes.backlog == sum(each.ready for each in here)
            assert pool.waiting_flows == len({each.flow for each in here})
            assert isinstance(pool.discipline, DrrDiscipline if self.policies.fairness else FifoDiscipline)
            if isinstance(pool.discipline, FifoDiscipline):
                assert list(pool.discipline._waiting) == sorted(here, key=lambda each: each.sequence)
        expiries = [each.expires_at for each in waiting]
        assert self.scheduler.wakes_at() == min(expiries, default=inf)
        assert len(drr._expiries) <= 2 * len(waiting) + 65

    @invariant()
    def running_and_charged_are_counted_per_tenant(self) -> None:
        for id, tenant in self.scheduler.drr.tenants.items():
            running = self.of(Stage.RUNNING, tenant=id)
            assert tenant.running == len(running)
            assert tenant.usage.requests == len(self.of(Stage.WAITING, tenant=id))
            if id in self.specs:
                charged = self.spent.get(id, 0.0) + sum(map(charged_so_far, running))
                assert tenant.charged == pytest.approx(charged, abs=1e-6)

    @invariant()
    def strangers_and_what_was_learned_of_them_are_forgotten(self) -> None:
        tenants = self.scheduler.drr.tenants
        idle = [id for id, tenant in tenants.items() if not tenant.configured and not tenant.busy]
        met_since = len(STRANGERS)  # those that went idle since a stranger last came are still to be forgotten
        assert len(idle) <= IDLE_TENANTS + met_since
        assert set(self.scheduler.drr._idle) == {tenants[id] for id in idle}
        for request in [*self.of(Stage.WAITING), *self.of(Stage.RUNNING)]:
            assert request.tenant in tenants

    def strangers_leave_nothing(self) -> None:
        self.now += 10_000.0
        name = f"stranger at {self.now}"  # whoever is new lets the others be forgotten
        late = Request(-1, name, self.now, self.now - 1.0, prompt_tokens=1, max_tokens=1)
        self.stages[late] = Stage.NEW
        self.at[Stage.NEW][late] = None
        assert isinstance(self.scheduler.admit(self.now, late), Rejection)
        self.ends(late, "refused")
        left = {id for id, tenant in self.scheduler.drr.tenants.items() if tenant.configured} | {name}
        assert set(self.scheduler.drr.tenants) == left
        assert not self.scheduler.drr._expiries
        assert self.scheduler.pools["default"].pool.active_flows == 0
