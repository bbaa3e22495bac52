"""Fairness in virtual time: tenants ask, slots serve, and the production scheduler decides who is next.

In the spirit of the queueset tests of Kubernetes' API priority and fairness, with unknown costs: a request is queued
under an estimate, and what it really costs shows when it ends. A slot does 100 units of work a second, so a request of
cost 10 holds it for 0.1 s. Work counts by start, between `warm_up_s` and the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.drr import Drr
from services.core.request import Request, Stage
from tests.core.rig import asking

WORK_PER_S = 100.0

Draw = Callable[[Random], float]
Guess = Callable[[Random, float], float]


def fixed(cost: float) -> Draw:
    return lambda random: cost


def between(low: float, high: float) -> Draw:
    return lambda random: random.uniform(low, high)


def exponential(mean: float) -> Draw:
    return lambda random: random.expovariate(1.0 / mean)


def mostly(small: float, large: float, share: float) -> Draw:
    """Small, but for this share of large ones."""
    return lambda random: large if random.random() < share else small


def known(random: Random, actual: float) -> float:
    return actual


def times(factor: float) -> Guess:
    return lambda random, actual: factor * actual


def always(cost: float) -> Guess:
    return lambda random, actual: cost


@dataclass(frozen=True)
class Load:
    """What a group of like tenants asks for. Exactly one of `backlog`, `clients` and `every_s` says when."""

    group: str
    tenants: int = 1
    weight: float = 1.0
    class_name: str = "default"
    backlog: int = 0
    """Always so many in line: one comes for each that starts."""
    clients: int = 0
    """So many at once, each asking again `think_s` after its answer."""
    think_s: float = 0.0
    every_s: float = 0.0
    """One burst of `burst` requests each so many seconds, the first at once."""
    burst: int = 1
    cost: Draw = field(default_factory=lambda: fixed(10.0))
    estimate: Guess = known
    from_s: float = 0.0
    until_s: float = inf
    pauses: tuple[tuple[float, float], ...] = ()
    """Spans in which nothing new is asked."""
    retrieval_s: float = 0.0
    cancels: float = 0.0
    """The share of requests whose client leaves at a random moment of the next second."""
    patience_s: float = 1e6
    pools: tuple[str, ...] = ("default",)
    """Taken in turn."""

    def asks(self, now: float) -> bool:
        return self.from_s <= now < self.until_s and not any(start <= now < end for start, end in self.pauses)

    def resumes(self, now: float) -> float:
        """When it asks again, for one that does not now."""
        return min((end for start, end in ((0.0, self.from_s), *self.pauses) if start <= now < end), default=inf)


@dataclass(frozen=True)
class Expect:
    """What a group gets: its part of all work, and how long its requests wait."""

    share: float | None = None
    margin: float = 0.01
    p95_wait_s: float = inf
    most_wait_s: float = inf


@dataclass(frozen=True)
class Scenario:
    """A title that reads as a sentence, who asks, and what must come out."""

    title: str
    loads: tuple[Load, ...]
    expect: dict[str, Expect]
    slots: int = 4
    quantum: float = 10.0
    duration_s: float = 60.0
    warm_up_s: float = 2.0
    classes: tuple[ClassSpec, ...] = (ClassSpec("default"),)
    slots_at: tuple[tuple[float, int], ...] = ()
    """Workers lost and found: the slots from a moment on. A lost worker's requests fail."""
    weights_at: tuple[tuple[float, str, float], ...] = ()
    quantum_at: tuple[tuple[float, float], ...] = ()


@dataclass
class Outcome:
    """What came out."""

    work: dict[str, float]
    waits: dict[str, list[float]]
    charged: float
    used: float

    def share(self, group: str) -> float:
        return self.work[group] / sum(self.work.values())

    def wait_s(self, group: str, quantile: float) -> float:
        waits = sorted(self.waits[group])
        return waits[min(len(waits) - 1, int(quantile * len(waits)))] if waits else 0.0


class Run:
    """One scenario, played."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(scenario.title)
        self.now = 0.0
        self.drr = Drr(quantum=scenario.quantum, bounds=QueueBounds(10**6), classes=scenario.classes)
        self.slots = scenario.slots
        self.running: dict[str, dict[Request, float]] = defaultdict(dict)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.asked: dict[str, int] = defaultdict(int)
        self.actual: dict[Request, float] = {}
        self.load_of: dict[Request, Load] = {}
        self.work: dict[str, float] = defaultdict(float)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.used = 0.0

    def play(self) -> Outcome:
        for load in self.scenario.loads:
            for at in range(load.tenants):
                tenant = f"{load.group}{at}"
                self.drr.configure(TenantSpec(tenant, QueueBounds(10**6), load.weight, load.class_name))
                self.begin(load, tenant)
        for when, slots in self.scenario.slots_at:
            self.at(when, lambda slots=slots: self.resize(slots))
        for when, group, weight in self.scenario.weights_at:
            self.at(when, lambda group=group, weight=weight: self.reweigh(group, weight))
        for when, quantum in self.scenario.quantum_at:
            self.at(when, lambda quantum=quantum: self.set_quantum(quantum))
        while self.events and self.events[0][0] <= self.scenario.duration_s:
            when = self.events[0][0]
            self.now = when
            while self.events and self.events[0][0] == when:
                heappop(self.events)[2]()
            self.fill()
        charged = sum(tenant.charged for tenant in self.drr.tenants.values())
        flying = sum(request.charge_tokens for running in self.running.values() for request in running)
        return Outcome(self.work, self.waits, charged - flying, self.used)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heappush(self.events, (when, next(self.order), what))

    # ---- asking

    def begin(self, load: Load, tenant: str) -> None:
        offset = self.random.random() * 1e-3
        if load.every_s:
            self.at(max(load.from_s, offset * load.every_s), lambda: self.burst(load, tenant))
            return
        for _ in range(load.backlog or load.clients):
            self.at(max(load.from_s, offset), lambda: self.ask(load, tenant))

    def burst(self, load: Load, tenant: str) -> None:
        if load.asks(self.now):
            for _ in range(load.burst):
                self.ask(load, tenant)
        if self.now < load.until_s:
            self.at(self.now + load.every_s, lambda: self.burst(load, tenant))

    def ask(self, load: Load, tenant: str) -> None:
        if not load.asks(self.now):
            if load.resumes(self.now) < inf and not load.every_s:
                self.at(load.resumes(self.now), lambda: self.ask(load, tenant))
            return
        pool = load.pools[self.asked[tenant] % len(load.pools)]
        self.asked[tenant] += 1
        actual = load.cost(self.random)
        deadline = self.now + load.patience_s
        request = asking(
            tenant, load.estimate(self.random, actual), deadline=deadline, pool=pool, ready=not load.retrieval_s
        )
        self.actual[request], self.load_of[request] = actual, load
        assert self.drr.enqueue(self.now, request) is None
        if load.retrieval_s:
            self.at(self.now + load.retrieval_s, lambda: self.drr.make_ready(self.now, request))
        if load.cancels and self.random.random() < load.cancels:
            self.at(self.now + self.random.random(), lambda: self.cancel(request))
        if load.patience_s < 1e6:
            self.at(deadline, lambda: None)

    # ---- serving

    def fill(self) -> None:
        for request in self.drr.expire(self.now):
            self.again(request)
        for pool in list(self.drr.pools):
            running = self.running[pool]
            while len(running) < self.slots and (request := self.drr.next(self.now, pool)):
                self.start(request, running)
            if len(running) < self.slots:
                could = any(
                    len(tenant.flows[pool].queue) for tenant in self.drr.tenants.values() if pool in tenant.flows
                )
                assert not could, "a slot stands empty while something could start"

    def start(self, request: Request, running: dict[Request, float]) -> None:
        load, actual = self.load_of[request], self.actual[request]
        running[request] = self.now
        if self.now >= self.scenario.warm_up_s:
            self.work[load.group] += actual
            self.waits[load.group].append(self.now - request.queued_at)
        self.at(self.now + actual / WORK_PER_S, lambda: self.end(request))
        if load.backlog:
            self.at(self.now, lambda: self.ask(load, request.tenant))

    def end(self, request: Request) -> None:
        if request.stage is not Stage.RUNNING:
            return
        started = self.running[request.pool].pop(request)
        done = min(self.actual[request], (self.now - started) * WORK_PER_S)
        self.used += done
        self.drr.settle(self.now, request, done)
        load = self.load_of[request]
        if load.clients:
            self.at(self.now + load.think_s, lambda: self.ask(load, request.tenant))

    def cancel(self, request: Request) -> None:
        if self.drr.discard(self.now, request):
            self.again(request)
        else:
            self.end(request)

    def again(self, request: Request) -> None:
        """Its tenant does not give up: another takes the place of one that left the line."""
        load = self.load_of[request]
        if load.backlog or load.clients:
            self.at(self.now + (1e-3 if load.clients else 0.0), lambda: self.ask(load, request.tenant))

    # ---- what changes

    def resize(self, slots: int) -> None:
        self.slots = slots
        for running in self.running.values():
            for request in list(running)[slots:]:
                self.end(request)

    def reweigh(self, group: str, weight: float) -> None:
        for load in self.scenario.loads:
            if load.group == group:
                for at in range(load.tenants):
                    self.drr.configure(TenantSpec(f"{group}{at}", QueueBounds(10**6), weight, load.class_name))

    def set_quantum(self, quantum: float) -> None:
        for pool in self.drr.pools.values():
            pool.set_quantum(quantum)
