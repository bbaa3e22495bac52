"""One simulated router: the product's scheduler, its leases, its level and its side of the exchange."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from loadtests.simulator.job import Job
from loadtests.simulator.policies.weir import POOL, WeirPolicy
from services.core.leases.borrower import Wants
from services.core.leases.poolleases import PoolLeases


class SimRouter:
    """A process that may be killed or frozen. Its successor is another object of the same name."""

    def __init__(self, place: int, epoch: int, policy: WeirPolicy, random: Callable[[], float]) -> None:
        self.place = place
        self.name = f"r{place}"
        self.epoch = epoch
        self.policy = policy
        self.leases = leases = PoolLeases(self.name, epoch, policy.scheduler, POOL, random)
        self.pool, self.borrower = leases.pool, leases.borrower
        self.level, self.ledger = leases.level, leases.ledger
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
        return self.leases.wants(now)

    def set_capacity(self, now: float) -> None:
        """Tell the scheduler how many slots to plan with."""
        slots = self.leases.plan(now)
        if slots != self.slots:
            self.slots = slots
            self.policy.capacity(now, slots)

    def is_frozen(self, now: float) -> bool:
        return now < self.frozen_until

    def __repr__(self) -> str:
        return f"<SimRouter {self.name}/{self.epoch}: {self.waiting} wait, {self.borrower!r}>"
