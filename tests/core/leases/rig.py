"""A book, its routers' asks, and a scheduler of one of several routers, in one line each."""

from __future__ import annotations

from itertools import count

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.choices import SchedulerSettings
from services.core.estimator import Estimator
from services.core.leases.book import Grants, LeaseBook
from services.core.leases.level import PoolLevel
from services.core.leases.messages import NEVER, Ask, Grant, Want
from services.core.leases.usage import UsageLedger
from services.core.request import Request
from services.core.scheduler import Scheduler

QUANTUM = 10.0
stamps = count(1)


def want(n: int, *, light: int = 0, level: float = 0.0, name: str = "default", turn: float = 0.0) -> Want:
    return Want(name, n, light, level, turn)


def ask(router: str, *wants: Want, keep: int | None = None, ack: Grant | None = None, epoch: int = 1) -> Ask:
    """The next ask of a router: each call has a higher stamp."""
    return Ask(router, (epoch, next(stamps)), NEVER if ack is None else ack.stamp, keep, wants, QUANTUM)


class Worker:
    """A book and the grants that it sent last, by router."""

    def __init__(self, slots: int, look_ahead: int = 0) -> None:
        self.book = LeaseBook(1, slots, look_ahead)
        self.last: dict[str, Grant] = {}

    def took(self, grants: Grants) -> list[str]:
        self.last |= grants
        return list(grants)

    def asks(self, now: float, router: str, *wants: Want, keep: int | None = None, epoch: int = 1) -> list[str]:
        """A router asks, having received every grant. Returns whom a grant was sent to."""
        sent = ask(router, *wants, keep=keep, ack=self.last.get(router), epoch=epoch)
        return self.took(self.book.receive(now, sent))

    def uses(self, now: float, router: str, n: int = 1, *wants: Want) -> None:
        """It starts so many requests, each with an ask that tells of these wants."""
        for _ in range(n):
            self.asks(now, router, *wants)
            grants = self.book.start(now, router, 1)
            assert grants is not None
            self.took(grants)

    def ends(self, now: float, router: str, n: int = 1) -> list[str]:
        return [to for _ in range(n) for to in self.took(self.book.end(now, router, 1))]

    def may(self, router: str) -> int:
        return self.last[router].may if router in self.last else 0


class Site:
    """One of several routers: a scheduler, its level, and its side of the exchange."""

    def __init__(
        self,
        name: str,
        weights: dict[str, float],
        *,
        classes: dict[str, float] | None = None,
        of_class: dict[str, str] | None = None,
        quantum: float = QUANTUM,
    ) -> None:
        specs = tuple(ClassSpec(each, weight) for each, weight in (classes or {"default": 1.0}).items())
        first = specs[0].name
        settings = SchedulerSettings(
            bounds=QueueBounds(10**6),
            unconfigured=TenantSpec("", QueueBounds(10**6), class_name=first),
            classes=specs,
            quantum_tokens=quantum,
            several_routers=True,
            strict=True,
        )
        self.name = name
        self.pool_slots = 0
        """Of all workers, whoever uses them."""
        self.scheduler = Scheduler(settings, lambda: 0.5)
        for tenant, weight in weights.items():
            name_of_class = (of_class or {}).get(tenant, first)
            self.scheduler.configure(TenantSpec(tenant, QueueBounds(10**6), weight, name_of_class))
        self.scheduler.announce("default", Estimator(work_per_slot_s=100.0, prefill_s_per_token=0.001))
        self.drr = self.scheduler.drr
        self.pool = self.drr.pool("default")
        self.level = PoolLevel(self.pool)
        self.ledger = UsageLedger(name, 1, self.drr, self.pool, self.level, lambda: self.pool_slots)
        self.ids = count()

    def queue(self, tenant: str, n: int = 1, cost: float = 10.0, now: float = 0.0) -> None:
        for _ in range(n):
            request = Request(f"{self.name}-{next(self.ids)}", tenant, now, 1e9, int(cost), 0)
            request.charge_tokens = cost
            assert self.drr.enqueue(now, request) is None
            flow = request.flow
            flow.stats.asked.add(now, cost)

    def serve(self, n: int = 1, now: float = 0.0, actual: float | None = None) -> str:
        """So many start and end. Whose they were."""
        served = ""
        for _ in range(n):
            request = self.drr.next(now, "default")
            if request is None:
                return served
            self.drr.settle(now, request, request.charge_tokens if actual is None else actual)
            served += request.tenant
        return served

    def charged(self, tenant: str) -> float:
        return self.drr.tenants[tenant].charged
