"""One router's part in a pool that several share: what it has borrowed, its level, and its side of the exchange.

The caller does the I/O: it sends the asks of `borrower` and gives it the grants, carries `ledger`'s reports to the
store, and starts what may start. Here is what the router asks for, and how many slots it plans with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.core.leases.borrower import Borrower, Wants
from services.core.leases.capacity import LeasedSlots
from services.core.leases.level import NO_RETRIES, IsLight, PoolLevel
from services.core.leases.usage import UsageLedger
from services.core.pool import ClassNode, Flow, PoolQueue
from services.core.scheduler import Scheduler


class PoolLeases:
    """One pool at one router process. `epoch`: when it started, in milliseconds since 1970; `random`: from 0 to 1."""

    __slots__ = ("_leased", "_scheduler", "borrower", "last_wants", "ledger", "level", "pool")

    def __init__(self, router: str, epoch: int, scheduler: Scheduler, pool: str, random: Callable[[], float]) -> None:
        self.pool: PoolQueue = scheduler.drr.pool(pool)
        self.borrower = borrower = Borrower(router, epoch, random, lambda: self.pool.quantum)
        self.level = PoolLevel(self.pool)
        self.ledger = UsageLedger(
            router, epoch, scheduler.drr, self.pool, self.level, pool_slots=lambda: borrower.pool_slots
        )
        self.last_wants: Wants = ()
        """What `wants` found last."""
        self._scheduler = scheduler
        self._leased = LeasedSlots()

    def wants(self, now: float, retries: Mapping[str, int] = NO_RETRIES, *, is_capped: bool = False) -> Wants:
        """What waits for a slot. The queue does while none is free, unless MAX_INFLIGHT is reached (`is_capped`).
        Retries, by class, do as long as there are any: each has its place under MAX_INFLIGHT, and may use no slot that
        is free, or it would not wait.
        """
        queue = self.pool.classes.backlog > 0 and not is_capped and not self.borrower.free(now)
        if not queue and not retries:
            self.last_wants = ()
        else:
            self.last_wants = self.level.wants(now, lambda node: self.light_of(now, node), retries, queue=queue)
        return self.last_wants

    def light_of(self, now: float, node: ClassNode) -> IsLight:
        """Whether a tenant with work in this class asks for less than its share of the pool. Nobody does while that is
        not known: at its own router a tenant may look light that is not, and light tenants come first everywhere.
        """
        elsewhere, estimator = self.ledger.elsewhere, self._scheduler.estimator(self.pool.name)
        share_per_s = None
        if estimator is not None and elsewhere.is_settled(now):
            share_per_s = elsewhere.share_per_s(now, node, self.pool, estimator)
        if share_per_s is None:
            return _not_light
        limit_per_s = share_per_s
        return lambda flow: (
            flow.stats.asked.rate(now) + elsewhere.asked_elsewhere(now, flow) <= limit_per_s * flow.tenant.weight
        )

    def plan(self, now: float) -> int:
        """Follow what the router may use; returns the slots to plan with, for `Scheduler.capacity`. Call it after each
        event.
        """
        borrower = self.borrower
        self._leased.follow(now, borrower.may(now))
        return self._leased.planned(borrower.uses, borrower.pool_slots)

    def __repr__(self) -> str:
        return f"<PoolLeases of {self.pool!r}: {self.borrower!r}>"


def _not_light(flow: Flow) -> bool:
    return False
