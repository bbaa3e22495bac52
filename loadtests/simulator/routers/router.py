"""One simulated router: the product's scheduler, its leases, its level and its side of the exchange."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from loadtests.simulator.job import Job
from loadtests.simulator.policies.weir import POOL, WeirPolicy
from services.core.leases.borrower import Borrower, Wants
from services.core.leases.capacity import LeasedSlots
from services.core.leases.level import PoolLevel
from services.core.leases.usage import UsageLedger
from services.core.pool import Flow, PoolQueue


class SimRouter:
    """A process that may be killed or frozen. Its successor is another object of the same name."""

    def __init__(self, place: int, epoch: int, policy: WeirPolicy, random: Callable[[], float]) -> None:
        self.place = place
        self.name = f"r{place}"
        self.epoch = epoch
        self.policy = policy
        self.scheduler = policy.scheduler
        self.pool: PoolQueue = self.scheduler.drr.pool(POOL)
        self.borrower = Borrower(self.name, epoch, random)
        self.level = PoolLevel(self.pool)
        self.ledger = UsageLedger(self.name, epoch, self.scheduler.drr, self.pool, self.level)
        self.leased = LeasedSlots()
        self.jobs: dict[Job, None] = {}
        """Queued and running."""
        self.slots = -1
        """As its scheduler was told last."""
        self.alive = True
        self.frozen_until = -inf
        self.wake_at = inf
        self.wakes = 0

    @property
    def waiting(self) -> int:
        return self.pool.requests

    def wants(self, now: float) -> Wants:
        """What waits for a slot; nothing while one is free."""
        if not self.pool.classes.backlog or self.borrower.free(now):
            self.level.rest()
            return ()
        return self.level.wants(now, lambda flow: self.is_light(now, flow))

    def is_light(self, now: float, flow: Flow) -> bool:
        """Whether the tenant asks for less than its share: of the pool, or of this router while that is not known."""
        estimator = self.scheduler.pools[POOL].estimator
        asked_per_s = flow.stats.asked.rate(now)
        load = self.ledger.elsewhere.load(now, flow, self.pool, estimator, asked_per_s)
        return load <= 1.0 if load is not None else asked_per_s <= (estimator.rate or 0.0) * self.pool.share(flow)

    def set_capacity(self, now: float) -> None:
        """Tell the scheduler how many slots to plan with."""
        self.borrower.quantum = self.pool.quantum
        elsewhere = self.ledger.elsewhere
        elsewhere.slots = self.borrower.pool_slots
        slots = self.leased.planned(now, self.borrower.may(now), self.borrower.uses, self.pool, elsewhere)
        if slots != self.slots:
            self.slots = slots
            self.policy.capacity(now, slots)

    def is_frozen(self, now: float) -> bool:
        return now < self.frozen_until

    def __repr__(self) -> str:
        return f"<SimRouter {self.name}/{self.epoch}: {self.waiting} wait, {self.borrower!r}>"
