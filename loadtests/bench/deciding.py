"""The cost of a whole decision in real time, in this process: a part of the benchmark `core`.

Weir's objects run on a virtual clock at ten times capacity, and each call is timed. The decision of a served request is
its `admit`, the `next` that started it, its first token and its `finish`; that of a rejected one is its `admit`. The
garbage collector is set as in the router. Other programs only make it slower, so the best repetition is reported;
median, worst and processor time show the noise.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from statistics import median
from time import perf_counter_ns, thread_time_ns

from loadtests.report.figure import Figure, formatted
from services.core.account import QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted
from services.core.choices import SchedulerSettings
from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.request import Request
from services.core.scheduler import Scheduler
from services.runtime.serve import quiet_collector

SLOTS = 16
SERVICE_S = 0.08
LOAD = 10
FEW, MANY = 10, 10_000
REPETITIONS = 5
OFFERS = 40_000
WARM_UP = 0.2
"""Share of the offers that do not count: estimates are learned, and Python warms up."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Nanoseconds of each decision."""

    served: Sequence[int]
    refused: Sequence[int]

    @property
    def mean_offer(self) -> float:
        return (sum(self.served) + sum(self.refused)) / (len(self.served) + len(self.refused))


class Drive:
    """A scheduler with `tenants` equal tenants, and sixteen slots that are always busy."""

    def __init__(self, tenants: int, seed: int, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        chance = Random(f"{seed}/timing")
        self._chance = chance
        self._names = [f"tenant-{number}" for number in range(tenants)]
        settings = SchedulerSettings(bounds=QueueBounds(max(256, 2 * tenants)), idle_tenants=tenants)
        self._scheduler = Scheduler(settings, chance.random)
        for name in self._names:
            self._scheduler.configure(TenantSpec(name, QueueBounds(64)))
        self._scheduler.announce(
            "default", Estimator(work_per_slot_s=2500.0, prefill_s_per_token=0.0004, s_per_token=0.0008)
        )
        self._scheduler.capacity(0.0, SLOTS)
        self._running: list[tuple[float, int, Request]] = []
        self._spent: dict[Request, int] = {}
        self._served: list[int] = []
        self._refused: list[int] = []

    def run(self, offers: int) -> Costs:
        now, gap = 0.0, SERVICE_S / SLOTS / LOAD
        for number in range(offers):
            now += gap * 2 * self._chance.random()
            self._end_until(now)
            self._offer(now, number)
        skip = int(WARM_UP * len(self._served)), int(WARM_UP * len(self._refused))
        return Costs(self._served[skip[0] :], self._refused[skip[1] :])

    def _offer(self, now: float, number: int) -> None:
        tenant = self._names[int(self._chance.random() * len(self._names))]
        request = Request(number, tenant, now, now + 1.0, 100, 50, bytes=400)
        began = self._clock()
        answer = self._scheduler.admit(now, request)
        spent = self._clock() - began
        if not isinstance(answer, Admitted):
            self._refused.append(spent)
            return
        self._spent[request] = spent
        if len(self._running) < SLOTS:
            self._start(now)

    def _start(self, now: float) -> None:
        for gone in self._scheduler.expire(now):
            self._spent.pop(gone, None)
        began = self._clock()
        request, evicted = self._scheduler.next(now)
        spent = self._clock() - began
        for gone in evicted:
            self._spent.pop(gone, None)
        if request is not None:
            self._spent[request] += spent
            takes = SERVICE_S * (0.9 + 0.2 * self._chance.random())
            heappush(self._running, (now + takes, int(request.id), request))

    def _end_until(self, now: float) -> None:
        while self._running and self._running[0][0] <= now:
            at, _, request = heappop(self._running)
            began = self._clock()
            self._scheduler.first_token(request.started_at + 0.04, request)
            self._scheduler.finish(at, request, Outcome.SERVED, 100, 50)
            spent = self._clock() - began
            self._served.append(self._spent.pop(request) + spent)
            self._start(at)


def p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


@dataclass(frozen=True, slots=True)
class Repetition:
    """Few and many tenants, and few again in processor time, in sequence, so that noise affects all of them."""

    few: Costs
    many: Costs
    processor: Costs


def measure(repetitions: int = REPETITIONS, offers: int = OFFERS) -> Iterator[Figure]:
    """Times decisions from admission to the end, in microseconds."""
    with _collector_of_the_router():
        made = [_repetition(each, offers) for each in range(repetitions)]
    for name, unit, target, read in FIGURES:
        values = [read(each) for each in made]
        note = f"best of {repetitions}; median {formatted(median(values), unit)}, worst {formatted(max(values), unit)}"
        yield Figure(name, min(values), unit, target, at_least=False, note=note)


def _repetition(seed: int, offers: int) -> Repetition:
    few, many = Drive(FEW, seed).run(offers), Drive(MANY, seed).run(offers)
    return Repetition(few, many, Drive(FEW, seed, thread_time_ns).run(offers))


@contextmanager
def _collector_of_the_router() -> Iterator[None]:
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    quiet_collector()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()


def _us(read: Callable[[Repetition], float]) -> Callable[[Repetition], float]:
    return lambda each: read(each) / 1e3


FIGURES: Sequence[tuple[str, str, float | None, Callable[[Repetition], float]]] = (
    ("a served decision, p99, ten tenants", "µs", 100, _us(lambda each: p99(each.few.served))),
    ("the same, p99, ten thousand tenants", "µs", 100, _us(lambda each: p99(each.many.served))),
    ("the same, median, ten tenants", "µs", None, _us(lambda each: median(each.few.served))),
    ("the same, median, ten thousand tenants", "µs", None, _us(lambda each: median(each.many.served))),
    ("the same in processor time, p99, ten tenants", "µs", None, _us(lambda each: p99(each.processor.served))),
    ("a rejection, p99, ten tenants", "µs", 5000, _us(lambda each: p99(each.few.refused))),
    ("the same, median, ten tenants", "µs", None, _us(lambda each: median(each.few.refused))),
    ("the same, median, ten thousand tenants", "µs", None, _us(lambda each: median(each.many.refused))),
    ("a served decision, median: ten thousand tenants / ten", "", 1.5,
     lambda each: median(each.many.served) / median(each.few.served)),
    ("any offer, mean: ten thousand tenants / ten", "", 1.5, lambda each: each.many.mean_offer / each.few.mean_offer),
)  # fmt: skip
