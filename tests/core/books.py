"""What a machine has been told of its requests, and what must hold in a Weir whatever it was told."""

from __future__ import annotations

from math import inf, isfinite

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from services.core.account import Bounds, TenantSpec
from services.core.choices import WeirSettings
from services.core.estimator import ENOUGH
from services.core.request import Request, Stage
from services.core.weir import Weir

ORDER = list(Stage)
POOLS = ("default", "other")
KNOWN = {
    "gold": TenantSpec("gold", Bounds(4, 4000, 900), weight=2.0, class_name="gold"),
    "plain": TenantSpec("plain", Bounds(6, 6000, 900)),
}
STRANGERS = [f"stranger-{number}" for number in range(7)]
PREFILL_S, TOKEN_S, PER_SLOT_S = 0.0002, 0.01, 300.0
IDLE_TENANTS = 2


class Books(RuleBasedStateMachine):
    weir: Weir
    settings: WeirSettings
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

    # ---- what always holds

    @invariant()
    def stages_are_as_told(self) -> None:
        for request, stage in self.stages.items():
            assert request.stage is stage
            assert (request in self.fates) == (stage in (Stage.NEW, Stage.ENDED))

    @invariant()
    def slots_are_counted(self) -> None:
        for pool, slots in self.slots.items():
            estimator = self.weir.learned[pool].estimator
            assert estimator.busy == len(self.of(Stage.RUNNING, pool))
            assert (estimator.slots, estimator.free) == (slots, max(0, slots - estimator.busy))
            assert (estimator.rate is None) or (isfinite(estimator.rate) and estimator.rate > 0)
            if self.announced and slots and self.ended[pool] < ENOUGH:
                assert estimator.rate == pytest.approx(PER_SLOT_S * slots)
            residual_s = estimator.residual_s(self.now)
            assert isfinite(residual_s)
            assert residual_s >= 0
            assert len(estimator._ends) <= 64 + 2 * (estimator.busy + 4) + 1

    @invariant()
    def books_are_those_of_the_waiting(self) -> None:
        drr, waiting = self.weir.drr, self.of(Stage.WAITING)
        assert drr.usage.requests == len(waiting)
        assert drr.usage.bytes == sum(each.bytes for each in waiting)
        assert drr.usage.cost_tokens == pytest.approx(sum(each.charge_tokens for each in waiting))
        for name in POOLS:
            pool, here = drr.pools[name], self.of(Stage.WAITING, name)
            assert pool.requests == len(here)
            assert pool.work == pytest.approx(sum(each.charge_tokens for each in here))
            assert pool.classes.backlog == sum(each.ready for each in here)
            assert pool.waiting_flows == len({each.tenant for each in here})
        expiries = [each.expires_at for each in waiting]
        assert self.weir.wakes_at() == min(expiries, default=inf)
        assert len(drr._expiries) <= 2 * len(waiting) + 65

    @invariant()
    def running_and_charged_are_counted_per_tenant(self) -> None:
        for id, tenant in self.weir.drr.tenants.items():
            running = self.of(Stage.RUNNING, tenant=id)
            assert tenant.running == len(running)
            assert tenant.usage.requests == len(self.of(Stage.WAITING, tenant=id))
            if id in KNOWN:
                charged = self.spent.get(id, 0.0) + sum(each.charge_tokens for each in running)
                assert tenant.charged == pytest.approx(charged, abs=1e-6)

    @invariant()
    def strangers_and_what_was_learned_of_them_are_forgotten(self) -> None:
        tenants = self.weir.drr.tenants
        idle = [id for id, tenant in tenants.items() if not tenant.configured and not tenant.busy]
        met_since = len(STRANGERS)  # those that went idle since a stranger last came are still to be forgotten
        assert len(idle) <= IDLE_TENANTS + met_since
        assert set(self.weir.drr._idle) == {tenants[id] for id in idle}
        for request in [*self.of(Stage.WAITING), *self.of(Stage.RUNNING)]:
            assert request.tenant in tenants
