"""Every assertion of the core sees its fault, and says which values were wrong: each is planted here, from inside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf
from typing import Any

import pytest

from services.core.account import QueueUsage, TenantSpec
from services.core.adaptive import AdaptiveLimit
from services.core.admissioncheck import AdmissionCheck
from services.core.batcher import BatchFormer, Batching, Waiting
from services.core.breaker import Breaker, BreakerEvent
from services.core.bucket import Bucket
from services.core.choices import SchedulerSettings
from services.core.drr import Drr
from services.core.estimator import Estimator
from services.core.expiries import Expiries
from services.core.ladder import Controller
from services.core.limit import InflightCap
from services.core.pool import Flow, PoolQueue
from services.core.request import Request, Stage
from services.core.reservations import RetryReservations
from services.core.retries import RetryBudget
from services.core.scheduler import Scheduler
from tests.core.rig import NO_BOUNDS, asking, enqueue, house, start
from tests.pythoncore import python_core


def waiting(drr: Drr, **fields: Any) -> Request:
    return enqueue(drr, asking("a", **fields))[0]


def parts(drr: Drr, **fields: Any) -> tuple[PoolQueue, Flow, Request]:
    """A request that waits, its line and its pool."""
    request = waiting(drr, **fields)
    return drr.pools["default"], request.flow, request


def counted_out_twice() -> None:
    usage, request = QueueUsage(NO_BOUNDS), asking("a")
    usage.give_back(request)


def more_bytes_out_than_in() -> None:
    usage, small = QueueUsage(NO_BOUNDS), asking("a", size=1)
    for request in (small, asking("a", size=1)):
        usage.take(request)
    small.bytes = 3
    usage.give_back(small)


def bytes_left_of_nobody() -> None:
    usage, request = QueueUsage(NO_BOUNDS), asking("a", size=9)
    usage.take(request)
    request.bytes = 1
    usage.give_back(request)


def started_twice() -> None:
    drr = house("a")
    request = waiting(drr)
    start(drr)
    drr._start(0.0, drr.pools["default"], request)


def taken_out_twice() -> None:
    drr = house("a")
    request = waiting(drr)
    drr.discard(0.0, request)
    drr._dequeue(0.0, request)


def expired_early() -> None:
    class Hasty(Expiries):
        def earliest(self) -> float:
            super().earliest()
            return 0.0

    drr = house("a")
    drr._expiries = Hasty()
    waiting(drr, expires_at=5.0)
    drr.expire(1.0)


def an_entry_that_was_not_dropped() -> None:
    drr = house("a")
    request = waiting(drr, expires_at=5.0)
    drr.wakes_at()
    request.expires_at = 7.0  # not by `postpone`
    drr.wakes_at()


def ended_and_not_counted_as_running() -> None:
    drr = house("a")
    request = waiting(drr)
    start(drr)
    drr.tenants["a"].running = 0
    drr.settle(0.0, request, 10.0)


def a_charge_settled_twice() -> None:
    drr = house("a")
    request = waiting(drr)
    start(drr)
    drr.settle(0.0, request, 10.0)
    drr._adjust_charge(0.0, request, 10.0, ended=10.0)


def unread_below_zero_in_line() -> None:
    pool, flow, request = parts(house("a"))
    request.read_tokens = 7  # not by `will_read`
    pool.remove(0.0, flow, request)


def ready_ones_that_nobody_counts() -> None:
    pool, flow, request = parts(house("a"))
    flow.requests = 0
    pool.remove(0.0, flow, request)


def lines_with_work_above_requests() -> None:
    pool, flow, request = parts(house("a"))
    pool.waiting_flows = 5
    pool.remove(0.0, flow, request)


def let_go_twice() -> None:
    pool, flow, _ = parts(house("a"))
    pool._deactivate(flow)
    pool._deactivate(flow)


def one_less_than_none_in_a_ring() -> None:
    _, flow, _ = parts(house("a"))
    flow.node.flows.remove_backlog(0.0, flow)
    flow.node.flows.remove_backlog(0.0, flow)


def one_less_than_none_in_a_ring_of_one() -> None:
    pool, flow, _ = parts(house("a"))
    pool.classes.remove_backlog(0.0, flow.node)
    pool.classes.remove_backlog(0.0, flow.node)


def two_counts_in_a_ring_of_one() -> None:
    pool, flow, _ = parts(house("a"))
    flow.node.backlog = 3
    pool.classes.remove_backlog(0.0, flow.node)


def weir(**settings: Any) -> Scheduler:
    made = Scheduler(SchedulerSettings(NO_BOUNDS, TenantSpec("", NO_BOUNDS), **settings), lambda: 0.5)
    made.capacity(0.0, 1)
    return made


def deeper_than_allowed() -> None:
    made, request = weir(), asking("a")
    pool_stats, flow = made._get_or_create(0.0, request)
    check = AdmissionCheck(0.0, request, made.settings, made._sizes, made._admission, pool_stats, flow)
    check.plan(2)
    check.charge()


def a_wait_without_end() -> None:
    pool, flow, _ = parts(house("a"))
    estimator = Estimator(work_per_slot_s=10.0)
    estimator.resize(0.0, 1)
    pool.round_work = pool.work = inf
    pool.discipline.predict_wait(0.0, flow, 1e9, estimator)


def a_slot_given_back_twice() -> None:
    Estimator().stop(0.0)


def read_more_than_there_was() -> None:
    request = asking("a")
    request.read_tokens = 5
    Estimator().end_prefill(request)


def an_appointment_without_a_time() -> None:
    RetryReservations().hint(0.0, 0.0, -1000.0, 1.0, lambda: 0.0)


def a_level_beyond_the_ladder() -> None:
    Controller()._change(99, free=True)


def a_window_that_forgets_more_than_it_saw() -> None:
    budget = RetryBudget(window_s=10.0)
    budget.sent(1.0)
    budget.first_in_window = 0
    budget.sent(100.0)


def a_breaker_that_did_not_open() -> None:
    breaker = Breaker(failures_to_open=2)
    breaker.failures = 5
    breaker._on(BreakerEvent.FAILURE, 0.0)


def a_bucket_that_is_never_full_again() -> None:
    bucket = Bucket(1.0, 10.0)
    bucket._full_at = float("nan")
    bucket.try_take(0.0)


def former() -> BatchFormer[str]:
    made: BatchFormer[str] = BatchFormer(Batching.CONTINUOUS, slots=2, queue_size=4)
    for name in "ab":
        made.offer(Waiting(name, 0.0, 10.0, name), running=2)
    return made


def in_line_and_not_by_id() -> None:
    made = former()
    del made._places["a"]
    made.offer(Waiting("c", 0.0, 10.0, "c"), running=2)


def by_id_and_not_in_line() -> None:
    made = former()
    del made._queue[0]
    made.discard("a")


def taken_and_still_by_id() -> None:
    made = former()
    made._places["z"] = made._places["a"]
    made.flush()


def more_starts_than_slots() -> None:
    class Generous(BatchFormer[str]):
        def _room(self, running: int) -> int:
            return 2

    made = Generous(Batching.CONTINUOUS, slots=2, queue_size=4)
    made.offer(Waiting("a", 0.0, 10.0, "a"), running=1)
    made.decide(0.0, running=2)


def a_limit_out_of_its_range() -> None:
    limit = AdaptiveLimit(min_limit=1, max_limit=4)
    limit.max_limit = 0
    limit._move(3.0)


FAULTS: list[tuple[Callable[[], None], str]] = [
    (counted_out_twice, "was counted out and not in: <QueueUsage -1 requests"),
    (more_bytes_out_than_in, "took more bytes along"),
    (bytes_left_of_nobody, "nothing waits, and <QueueUsage 0 requests, .* 8 bytes"),
    (started_twice, "running.* starts, and does not wait"),
    (taken_out_twice, "ended.* leaves the line, and does not wait"),
    (expired_early, "is taken out at 1, noted for 5"),
    (an_entry_that_was_not_dropped, "more entries are stale than were dropped"),
    (ended_and_not_counted_as_running, "was not counted as running: <TenantAccount a: 0 wait, -1 run"),
    (a_charge_settled_twice, "<Flow a.*: -.* tokens are in flight"),
    (unread_below_zero_in_line, "-7 tokens are unread in <PoolQueue default"),
    (ready_ones_that_nobody_counts, "-1 wait in <Flow a"),
    (lines_with_work_above_requests, "4 lines of <PoolQueue default"),
    (let_go_twice, "was let go twice in <PoolQueue default"),
    (one_less_than_none_in_a_ring, "<Flow a.*: -1 left of -1"),
    (one_less_than_none_in_a_ring_of_one, "<ClassNode default.*: -1 left of -1"),
    (two_counts_in_a_ring_of_one, "<ClassNode default.*: 2 left of 0"),
    (deeper_than_allowed, "at level 2, 0 is allowed"),
    (a_wait_without_end, "a wait of inf s"),
    (a_slot_given_back_twice, "a slot was given back twice: <Estimator -1/0 slots"),
    (read_more_than_there_was, "-5 tokens are unread, without the 5"),
    (an_appointment_without_a_time, "a slot at 0.05, booked until"),
    (a_level_beyond_the_ladder, "level 99 is not on the ladder"),
    (a_window_that_forgets_more_than_it_saw, "more left the window than came"),
    (a_breaker_that_did_not_open, "it should have opened: <Breaker"),
    (a_bucket_that_is_never_full_again, "1.0 were taken at 0"),
    (in_line_and_not_by_id, "3 in line, 2 by id"),
    (by_id_and_not_in_line, "1 in line, 1 by id, at ..a..: <BatchFormer"),
    (taken_and_still_by_id, "0 in line, 1 by id"),
    (more_starts_than_slots, "2 run and 1 start: <BatchFormer"),
    (a_limit_out_of_its_range, "a limit of 3.0: <AdaptiveLimit"),
]


@python_core
@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], None], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        plant()


@python_core
def test_nobody_is_served_without_a_deficit(monkeypatch: pytest.MonkeyPatch) -> None:
    drr = house("a")
    flow = waiting(drr).flow
    monkeypatch.setattr(type(flow.node.flows), "front", lambda ring: flow)
    flow.deficit = -1.0
    with pytest.raises(AssertionError, match=r"<Flow a.*deficit -1.* with nothing to pay with"):
        drr.next(0.0, "default")


MOVES = {
    Stage.NEW: {Stage.WAITING},
    Stage.WAITING: {Stage.RUNNING, Stage.ENDED},
    Stage.RUNNING: {Stage.ENDED},
    Stage.ENDED: set(),
}
"""What a request's stage may become. Whatever else is tried is an error, and changes nothing."""


@pytest.mark.parametrize(("stage", "step"), list(product(Stage, ["enqueue", "start", "take out", "settle"])))
def test_a_request_moves_from_stage_to_stage_by_the_table(stage: Stage, step: str) -> None:
    drr = house("a")
    request = asking("a")
    if stage is not Stage.NEW:
        enqueue(drr, request)
    if stage in (Stage.RUNNING, Stage.ENDED):
        start(drr)
    if stage is Stage.ENDED:
        drr.settle(0.0, request, 10.0)
    if stage is Stage.NEW:
        request.flow = drr.flow(drr.pool("default"), drr.tenants["a"])
    steps: dict[str, tuple[Stage, Callable[[], object]]] = {
        "enqueue": (Stage.WAITING, lambda: drr.enqueue(0.0, request)),
        "start": (Stage.RUNNING, lambda: drr._start(0.0, drr.pools["default"], request)),
        "take out": (Stage.ENDED, lambda: drr._dequeue(0.0, request)),
        "settle": (Stage.ENDED, lambda: drr.settle(0.0, request, 10.0)),
    }
    becomes, take = steps[step]
    allowed = becomes in MOVES[stage] and (step, stage) not in {("settle", Stage.WAITING), ("take out", Stage.RUNNING)}
    if allowed:
        take()
        assert request.stage is becomes
        return
    books = repr(drr)
    with pytest.raises((AssertionError, RuntimeError), match="Request"):
        take()
    assert (request.stage, repr(drr)) == (stage, books)


def test_a_place_given_back_twice_is_an_error_that_needs_no_assertion() -> None:
    cap = InflightCap(1)
    assert cap.try_take()
    cap.give_back()
    with pytest.raises(RuntimeError, match="given back twice"):
        cap.give_back()
