"""The cost of each mechanism in CPython: microseconds of processor time a call, the best of several batches.

Other programs only make a call slower, so the best batch is reported. The cost of a whole decision comes first
(`deciding`); the other figures are its parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

from loadtests.bench import deciding
from loadtests.report.figure import Figure
from services.core.account import QueueBounds, TenantSpec
from services.core.calibration import WaitCalibration
from services.core.codel import CoDelLimiter
from services.core.cost import Lengths
from services.core.drr import Drr
from services.core.edf import DeadlineQueue
from services.core.estimator import Estimator
from services.core.ladder import LADDER, Controller
from services.core.quantile import Rolling, Sketch
from services.core.request import Request, Stage
from services.core.reservations import RetryReservations

BATCHES = 5
CALLS = 4000
FEW, MANY = 10, 10_000
Call = Callable[[int], object]


async def measure(seconds: float) -> list[Figure]:
    share = min(1.0, seconds / 4.0)
    calls = max(500, int(CALLS * share))
    decisions = deciding.measure(offers=max(1000, int(deciding.OFFERS * share)))
    return [*decisions, *(Figure(name, _best_us(call, calls), "us a call", note=note) for name, note, call in _calls())]


def _best_us(call: Call, calls: int) -> float:
    spent_s = []
    for batch in range(BATCHES):
        began = time.process_time()
        for number in range(batch * calls, (batch + 1) * calls):
            call(number)
        spent_s.append(time.process_time() - began)
    return min(spent_s) / calls * 1e6


def _calls() -> Iterator[tuple[str, str, Call]]:
    chance = Random(1)
    draws = [chance.lognormvariate(4, 1) for _ in range(4096)]
    few, many = _scheduler(FEW), _scheduler(MANY)
    yield f"a request through the scheduler, {FEW} tenants", "queued, scheduled, settled", few
    yield f"a request through the scheduler, {MANY:,} tenants", "the same", many
    yield "a request in a deadline queue of 256", "add and discard", _deadline_queue(draws)
    sketch, rolling, lengths = Sketch(0.02, half_life=200), Rolling(200), Lengths(Lengths())
    yield "a sample into a sketch", "", lambda n: sketch.add(draws[n % 4096])
    yield "a sample into a window of 200", "", lambda n: rolling.add(draws[n % 4096])
    yield "an answer's length, learned", "tenant and model", lambda n: lengths.observe(draws[n % 4096])
    yield "an answer's length, estimated", "q90", lambda n: lengths.at(0.9, 512)
    calibration = WaitCalibration(WaitCalibration())
    yield "an error of a wait, learned", "tenant and class", lambda n: calibration.learn(0.1, draws[n % 4096] / 1000)
    yield "a cautious wait, estimated", "", lambda n: calibration.cautious_s(0.1, 0.08)
    limiter, reservations, controller = CoDelLimiter(), RetryReservations(), Controller()
    yield "a sample of the CoDel limiter", "", lambda n: limiter.sample(n * 0.005, 0.1, 0.08, 0.8)
    yield "a hint", "", lambda n: reservations.hint(n * 0.005, 1000.0, 100.0, 40_000.0, chance.random)
    yield "the degradation ladder, at a window's end", "twice a second and class", _ladder(controller)
    yield "a start and an end in the estimator", "capacity learned", _estimator()


def _scheduler(tenants: int) -> Call:
    drr = Drr(quantum=100.0, bounds=QueueBounds(2 * tenants + 100))
    names = [f"tenant-{number}" for number in range(tenants)]
    for number, name in enumerate(names):
        drr.configure(TenantSpec(name, QueueBounds(64)))
        _enqueue(drr, -number, name, 0.0)

    def call(number: int) -> None:
        now = number * 0.005
        _enqueue(drr, number, names[number * 7919 % tenants], now)
        request = drr.next(now, "default")
        assert request is not None
        drr.settle(now, request, 90.0)

    return call


def _enqueue(drr: Drr, number: int, tenant: str, now: float) -> None:
    request = Request(number, tenant, now, now + 1e6, 50, 50)
    request.charge_tokens, request.expires_at = 100.0, now + 1e6
    drr.enqueue(now, request)


def _deadline_queue(draws: list[float]) -> Call:
    queue = DeadlineQueue()
    requests = [Request(number, "a", 0.0, draws[number], 50, 50) for number in range(512)]
    for number, request in enumerate(requests):
        request.sequence, request.charge_tokens = number, 100.0
    for request in requests[:256]:
        queue.add(request)

    def call(number: int) -> None:
        queue.add(requests[(number + 256) % 512])
        queue.discard(requests[number % 512])

    return call


def _ladder(controller: Controller) -> Call:
    offered = [40_000.0 / (level + 1) for level in range(len(LADDER))]
    return lambda n: controller.observe(
        n * 0.5, q95_wait_s=0.2, median_slack_s=1.0, offered_work_per_s=offered, rate=20_000.0
    )


def _estimator() -> Call:
    estimator = Estimator(work_per_slot_s=1000.0, prefill_s_per_token=0.0004, s_per_token=0.0008)
    estimator.resize(0.0, 16)
    running: list[Request] = []

    def call(number: int) -> None:
        now = number * 0.005
        if len(running) == 16:
            ended = running.pop(0)
            ended.stage = Stage.ENDED
            estimator.stop(now)
            estimator.learn(now, ended, 100.0)
        request = Request(number, "a", now, now + 1.0, 50, 50)
        request.stage, request.started_at = Stage.RUNNING, now
        running.append(request)
        estimator.start(now, request, estimator.service_s(50, 50))

    return call
