"""The event loop with several routers: `Simulation`, with a queue, leases and a link to each worker for each router.

Between a router and a worker, or the store, a message takes `half_trip_ms`. A frozen router receives when it goes on.
A cut loses messages: an ask or a grant is gone; a request or an answer that is lost ends at its deadline, when its
router closes the connection.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

from loadtests.scenarios.model import Scenario, TenantGroup
from loadtests.scenarios.routers import RouterFault, Routers
from loadtests.simulator.accounts import LedgerError
from loadtests.simulator.job import RUNNING, WAITING, Job
from loadtests.simulator.plan import ArrivalPlan
from loadtests.simulator.policies.weir import WeirPolicy
from loadtests.simulator.policy import Policy, Refusal
from loadtests.simulator.report import RoutersReport
from loadtests.simulator.routers.bound import GapBound
from loadtests.simulator.routers.router import SimRouter
from loadtests.simulator.simulation import MAX_WAKES_AT_ONCE, Simulation
from loadtests.simulator.workers import Worker
from services.core.cost import Weights
from services.core.leases.book import Grants, LeaseBook
from services.core.leases.borrower import Asks
from services.core.leases.exchange import UsageAnswer, UsageExchange, UsageReport
from services.core.leases.messages import NEVER, Ask, Grant
from services.core.outcome import Outcome

TICK_S = 0.05
KEPT = Grant(NEVER, NEVER, 0, 0.0, 0)
"""An old grant, which changes nothing: with fixed parts a router keeps its slots."""
SAMPLE_S = 0.0103
"""Not a divisor of service times, so that samples do not fall into step with them."""
Call = Callable[[float, Any], None]


class _Facade(Policy):
    """What `Simulation` asks of a policy, passed on to the router that has the job."""

    cancels = True

    def __init__(self, first: WeirPolicy) -> None:
        self.quantiles = first.quantiles
        self.context_shares = first.context_shares
        self.cancels = first.cancels
        self.routers: list[SimRouter] = []

    @property
    def level_changes(self) -> int:
        return sum(router.policy.level_changes for router in self.routers)

    def offer(self, now: float, job: Job) -> Refusal | None:
        router: SimRouter = job.router
        refusal = router.policy.offer(now, job)
        if refusal is None:
            router.jobs[job] = None
        return refusal

    def leave(self, now: float, job: Job) -> None:
        job.router.policy.leave(now, job)

    def first_token(self, now: float, job: Job) -> None:
        job.router.policy.first_token(now, job)

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        job.router.policy.finish(now, job, outcome, prompt_tokens, completion_tokens)

    def predicted(self, job: Job) -> Any:
        return job.forecast


class RoutersSimulation(Simulation):
    """`make(place)` makes the policy of one router process."""

    def __init__(
        self,
        scenario: Scenario,
        routers: Routers,
        plan: ArrivalPlan,
        make: Callable[[int], WeirPolicy],
        weights: Weights,
        *,
        seed: int,
    ) -> None:
        self.routers: list[SimRouter] = []
        self.books: dict[str, LeaseBook] = {}
        self.static = routers.leases == "static"
        self.over_slots = 0
        self.messages: Counter[str] = Counter()
        self._make = make
        self._given = routers
        self._half_trip_s = routers.half_trip_ms / 1000.0
        self._touched: SimRouter | None = None
        self._random = Random(f"{seed}/routers")
        self._epochs = 0
        self._weight_sums = _ingress(routers)
        self._by_name: dict[str, Worker] = {}
        self._answers: dict[Job, Grant | None] = {}
        self._idle = self._samples = 0
        self._cuts: list[RouterFault] = []
        facade = self.facade = _Facade(make(0))
        super().__init__(scenario, plan, facade, weights, seed=seed)
        self.bound = GapBound(scenario, routers, weights)
        self.store = UsageExchange("1")
        self._by_name = {f"w{place}": worker for place, worker in enumerate(self.fleet.workers)}
        self.books = {name: LeaseBook(self._epoch(), worker.slots) for name, worker in self._by_name.items()}
        self._names = {worker: name for name, worker in self._by_name.items()}
        for place in range(routers.count):
            self._begin(0.0, place)
        if self.static:
            self._deal()
        else:
            self.schedule(TICK_S, self._tick, None)
        self.schedule(self._from_s, self._sample, None)
        for fault in routers.faults:
            self._plan_fault(fault)

    def _epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def _begin(self, now: float, place: int) -> None:
        """A router process begins."""
        chance = Random(f"{self._random.random()}/{place}").random
        router = SimRouter(place, self._epoch(), self._make(place), chance)
        if place < len(self.routers):
            self.routers[place] = router
        else:
            self.routers.append(router)
        self.facade.routers.append(router)
        for name, worker in self._by_name.items():
            router.borrower.join(now, name, worker.slots)
        router.set_capacity(now)
        if self._given.exchange_ms and not self.static:
            every_s = self._given.exchange_ms / 1000.0
            self.schedule(now + every_s * (place + 1) / self._given.count, self._exchange, router)

    def _deal(self) -> None:
        """Give each router its part of the slots, for good."""
        number = 0
        for name, worker in self._by_name.items():
            shares = Counter((number + slot) % len(self.routers) for slot in range(worker.slots))
            number += worker.slots
            for place, router in enumerate(self.routers):
                holding = router.borrower.holdings[name]
                holding.receive(0.0, Grant((1, 1), (router.epoch, 0), shares[place], 0.0, worker.slots))
                holding.lapses_at = math.inf
                router.borrower.use(0.0, name, usable=True)
        for router in self.routers:
            router.policy.capacity(0.0, router.borrower.may(0.0))
            router.slots = router.borrower.may(0.0)

    # ---- clients

    def _arrive(self, now: float, job: Job) -> None:
        router = self._reached(job)
        if router.is_frozen(now):
            self.schedule(router.frozen_until, self._arrive_late, job)
            return
        job.router = self._touched = router
        super()._arrive(now, job)
        if router.waiting and not router.jobs:
            raise LedgerError(f"{router!r} has requests without jobs")

    def _arrive_late(self, now: float, job: Job) -> None:
        self._arrive(now, job)

    def _reached(self, job: Job) -> SimRouter:
        """The router that the job's connection goes to; the balancer knows which are alive."""
        group: TenantGroup = job.asker.group
        if group.routers:
            place = group.routers[int(self._random.random() * len(group.routers))]
        elif self._given.ingress == "tenant":
            place = sum(job.tenant.encode()) % len(self.routers)
        else:
            draw = self._random.random() * self._weight_sums[-1]
            place = next(place for place, total in enumerate(self._weight_sums) if draw < total)
        for turn in range(len(self.routers)):
            router = self.routers[(place + turn) % len(self.routers)]
            if router.alive:
                return router
        return self.routers[place]

    def _abandon(self, now: float, job: Job, why: Outcome) -> None:
        router: SimRouter = job.router
        if not router.alive:
            return
        if router.is_frozen(now):
            self.schedule(router.frozen_until, lambda at, job: self._abandon(at, job, why), job)
            return
        if job.state == RUNNING and job.worker is not None and self.policy.cancels:
            job.stopped = why
            if self._is_cut(now, router, self._names[job.worker], "to") or self._is_cut(
                now, router, self._names[job.worker], "from"
            ):
                self._close(now, job)
            else:
                self._post(now, router, self._names[job.worker], "to", job.worker.stop, job)
            return
        self._touched = router
        super()._abandon(now, job, why)
        router.jobs.pop(job, None)
        self._pump(now, router)

    def _close(self, now: float, job: Job) -> None:
        """The router gives up a connection that does not answer."""
        if job in job.router.jobs:
            job.used_s = 0.0
            self._answers[job] = None
            self._finish(now, job)

    # ---- the queue of each router

    def _dispatch(self, now: float) -> None:
        if self._touched is not None:
            self._pump(now, self._touched)

    def _pump(self, now: float, router: SimRouter) -> None:
        """Start what may start, then ask for what may not."""
        if not router.alive or router.is_frozen(now):
            return
        borrower = router.borrower
        while router.waiting and borrower.free(now):
            job, dropped = router.policy.next(now)
            for other in dropped:
                router.jobs.pop(other, None)
                self._evict(now, other)
            if job is None:
                break
            self._start(now, job)
        if not self.static:
            self._post_asks(now, router, borrower.settle(now, router.wants(now)))
            router.set_capacity(now)
        self._schedule_router(now, router)

    def _schedule_wake(self, now: float) -> None:
        """Each router has its own; see `_schedule_router`."""

    def _schedule_router(self, now: float, router: SimRouter) -> None:
        at = router.policy.wakes_at()
        if at < router.wake_at:
            router.wake_at = max(at, now)
            self.schedule(router.wake_at, self._wake_router, router)

    def _wake_router(self, now: float, router: SimRouter) -> None:
        if now < router.wake_at or not router.alive:
            return
        if router.is_frozen(now):
            router.wake_at = router.frozen_until
            self.schedule(router.frozen_until, self._wake_router, router)
            return
        router.wake_at = math.inf
        for job in router.policy.expire(now):
            router.jobs.pop(job, None)
            self._evict(now, job)
        router.wakes = router.wakes + 1 if router.policy.wakes_at() <= now else 0
        if router.wakes > MAX_WAKES_AT_ONCE:
            raise RuntimeError(f"{router!r} wants to be woken at {now:g} for ever")
        self._pump(now, router)

    # ---- requests at workers

    def _send(self, now: float, job: Job) -> None:
        router: SimRouter = job.router
        free = router.borrower.free(now)
        name = min(free, key=lambda each: (self._load(router, each), int(each[1:])))
        worker = job.worker = self._by_name[name]
        self.fleet.take_on(worker, job.worker_prompt + job.planned_tokens)
        self.bound.started(job)
        router.borrower.start(now, name)
        ask = None if self.static else router.borrower.ask_with_request(now, name, router.wants(now))
        self.messages["requests"] += 1
        if self._is_cut(now, router, name, "to"):
            return  # it ends at its deadline
        job.lease_epoch = router.borrower.holdings[name].epoch
        self.schedule(now + self._half_trip_s, self._received, (job, ask))

    def _load(self, router: SimRouter, name: str) -> float:
        holding = router.borrower.holdings[name]
        return holding.uses / max(1, holding.slots)

    def _received(self, now: float, what: tuple[Job, Ask | None]) -> None:
        """A request arrives at its worker."""
        job, ask = what
        worker = job.worker
        assert worker is not None
        if job.state != RUNNING:
            return  # its router is gone, or has given up
        name = self._names[worker]
        if ask is None:
            worker.give(now, job)
            return
        book = self.books[name]
        self._post_grants(now, name, self._answering(now, name, job.router, book.receive(now, ask)))
        grants = book.start(now, job.router.name, job.lease_epoch)
        if grants is not None:
            self._post_grants(now, name, grants)
            worker.give(now, job)
            return
        self.over_slots += 1
        job.stopped = Outcome.UPSTREAM_FAILED
        self._post(now, job.router, name, "from", self._finish, job)

    def _answering(self, now: float, name: str, router: SimRouter, grants: Grants) -> Grants:
        """Send the asker its own grant, even if another process has its name. Returns the others."""
        own = grants.pop(router.name, None)
        if own is not None:
            self._post(now, router, name, "from", self._granted, (router, name, own))
        return grants

    def completed(self, now: float, job: Job) -> None:
        worker = job.worker
        assert worker is not None
        name, router = self._names[worker], job.router
        grant = None
        if not self.static:
            grants = self.books[name].end(now, router.name, job.lease_epoch)
            grant = grants.pop(router.name, None)
            self._post_grants(now, name, grants)
        if job.state == RUNNING and job in router.jobs:
            self._post(now, router, name, "from", self._answered, (job, grant))
        elif job.used_s:
            self.work.used(job, useful=False)  # nobody waits for it

    def _answered(self, now: float, what: tuple[Job, Grant | None]) -> None:
        job, grant = what
        if job in job.router.jobs:
            self._answers[job] = grant
            self._finish(now, job)

    def first_token(self, now: float, job: Job) -> None:
        assert job.worker is not None
        self._post(now, job.router, self._names[job.worker], "from", self._token_seen, job)

    def lost(self, now: float, job: Job) -> None:
        if job in job.router.jobs:
            super().lost(now, job)

    def _finish(self, now: float, job: Job) -> None:
        router: SimRouter = job.router
        if job not in router.jobs or job.worker is None:
            return
        del router.jobs[job]
        name, grant = self._names[job.worker], self._answers.pop(job, None)
        self.bound.ended(job)
        if self.static:
            router.borrower.end(now, name, KEPT)
        else:
            is_ahead = router.level.is_ahead(now)
            self._post_asks(now, router, router.borrower.end(now, name, grant, is_ahead=is_ahead))
        self._touched = router
        super()._finish(now, job)

    # ---- messages

    def _post(self, now: float, router: SimRouter, name: str, way: str, call: Call, what: Any) -> None:
        """Deliver after half a trip, unless the link is cut; to a frozen router when it goes on."""
        if self._is_cut(now, router, name, way):
            return
        if way == "to":
            self.schedule(now + self._half_trip_s, call, what)
        else:
            self.schedule(now + self._half_trip_s, self._deliver, (router, call, what))

    def _deliver(self, now: float, what: tuple[SimRouter, Call, Any]) -> None:
        router, call, payload = what
        if not router.alive:
            return
        if router.is_frozen(now):
            self.schedule(router.frozen_until, self._deliver, what)
            return
        call(now, payload)

    def _post_asks(self, now: float, router: SimRouter, asks: Asks) -> None:
        for name, ask in asks:
            self.messages["asks"] += 1
            self._post(now, router, name, "to", self._asked, (router, name, ask))

    def _asked(self, now: float, what: tuple[SimRouter, str, Ask]) -> None:
        router, name, ask = what
        self._post_grants(now, name, self._answering(now, name, router, self.books[name].receive(now, ask)))

    def _post_grants(self, now: float, name: str, grants: Grants) -> None:
        for each, grant in grants.items():
            router = self.routers[int(each[1:])]
            self.messages["pushed grants"] += 1
            self._post(now, router, name, "from", self._granted, (router, name, grant))

    def _granted(self, now: float, what: tuple[SimRouter, str, Grant]) -> None:
        router, name, grant = what
        router.borrower.receive(now, name, grant)
        if not router.ledger.elsewhere.is_fresh(now):
            router.level.receive(now, dict(grant.lowest))
        self._pump(now, router)

    def _tick(self, now: float, _: None) -> None:
        for name, book in self.books.items():
            if book.wakes_at() < now:
                self._post_grants(now, name, book.expire(now))
        for router in self.routers:
            if router.alive and not router.is_frozen(now):
                router.ledger.forget_stale(now)
                self._post_asks(now, router, router.borrower.refresh(now, router.wants(now)))
                self._pump(now, router)
        self.schedule(now + TICK_S, self._tick, None)

    # ---- the exchange

    def _exchange(self, now: float, router: SimRouter) -> None:
        if not router.alive:
            return
        self.schedule(now + self._given.exchange_ms / 1000.0, self._exchange, router)
        if router.is_frozen(now):
            return
        self.messages["exchanges"] += 1
        report = router.ledger.report(now, router.wants(now))
        self._post(now, router, "", "to", self._added, (router, report))

    def _added(self, now: float, what: tuple[SimRouter, UsageReport]) -> None:
        router, report = what
        answer = self.store.call(now, report)
        self._post(now, router, "", "from", self._exchanged, (router, answer))

    def _exchanged(self, now: float, what: tuple[SimRouter, UsageAnswer]) -> None:
        router, answer = what
        router.ledger.receive(now, answer)
        self._pump(now, router)

    # ---- faults

    def _plan_fault(self, fault: RouterFault) -> None:
        if fault.kind == "killed":
            self.schedule(fault.from_s, lambda now, place: self._kill(now, self.routers[place]), fault.router)
            self.schedule(fault.until_s, self._begin, fault.router)
        elif fault.kind == "frozen":
            self.schedule(fault.from_s, self._freeze, fault)
        else:
            self._cuts.append(fault)

    def _freeze(self, now: float, fault: RouterFault) -> None:
        self.routers[fault.router].frozen_until = fault.until_s

    def _kill(self, now: float, router: SimRouter) -> None:
        """Its connections are closed: clients know at once, and workers when that reaches them."""
        router.alive = False
        for job in list(router.jobs):
            if job.state == WAITING:
                self._unqueue(job)
            elif job.worker is not None:
                self.bound.ended(job)
                self.fleet.give_back(job.worker, job.worker_prompt + job.planned_tokens)
                self.schedule(now + self._half_trip_s, job.worker.stop, job)
            if not job.ended:
                self._attempt_failed(now, job, job.account.failed, Outcome.UPSTREAM_FAILED)
        router.jobs.clear()
        self.schedule(now + self._half_trip_s, self._disconnected, router)

    def _disconnected(self, now: float, router: SimRouter) -> None:
        for name, book in self.books.items():
            self._post_grants(now, name, book.disconnect(now, router.name, router.borrower.holdings[name].epoch))

    def _is_cut(self, now: float, router: SimRouter, name: str, way: str) -> bool:
        return any(
            fault.router == router.place
            and fault.from_s <= now < fault.until_s
            and fault.ways in ("both", way)
            and (fault.of == "store") == (not name)
            and (not name or fault.workers is None or int(name[1:]) < fault.workers)
            for fault in self._cuts
        )

    def _fleet_changed(self, now: float) -> None:
        """A worker that is down has lost its leases; one that is up again lends anew."""
        self.work.slots(now, self.fleet.slots)
        for name, worker in self._by_name.items():
            slots = 0 if worker.down else worker.slots
            if self.books[name].slots != slots:
                self.books[name] = LeaseBook(self._epoch(), slots)
                for router in self.routers:
                    with suppress(KeyError):
                        router.borrower.disconnect(now, name)
                        router.borrower.use(now, name, usable=True, slots=slots)

    # ---- figures

    def _sample(self, now: float, _: None) -> None:
        """Slots that are idle while a request waits that could start, at any router."""
        if any(router.alive and router.pool.classes.backlog for router in self.routers):
            used = {
                name: worker.inflight if self.static else self.books[name].running
                for name, worker in self._by_name.items()
            }
            self._idle += sum(max(0, self._by_name[name].slots - count) for name, count in used.items())
        self._samples += 1
        if now < self._until_s:
            self.schedule(now + SAMPLE_S, self._sample, None)

    def routers_report(self) -> RoutersReport:
        """What concerns the routers only."""
        requests = self.messages["requests"]
        slots = max(1, self.scenario.slots)
        messages = {kind: count / max(1, requests) for kind, count in self.messages.items() if kind != "requests"}
        return RoutersReport(
            routers=len(self.routers),
            over_slots=self.over_slots,
            idle_share=self._idle / max(1, self._samples) / slots,
            messages_a_request=messages,
            gap_bound_cost=self.bound.of(self.gaps, self.routers),
        )


def _ingress(routers: Routers) -> list[float]:
    """Sums of the routers' parts of the requests."""
    return list(_sums(routers))


def _sums(routers: Routers) -> Iterator[float]:
    total = 0.0
    for place in range(routers.count):
        if routers.ingress == "zipf":
            total += 1.0 / (place + 1)
        elif routers.ingress == "90/10":
            total += 0.9 if place == 0 else 0.1 / (routers.count - 1)
        else:
            total += 1.0
        yield total
