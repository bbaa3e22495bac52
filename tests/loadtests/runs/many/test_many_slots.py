"""Slots by the workers' own logs: how many jobs at once, and how soon slots are in use again."""

from __future__ import annotations

from math import isnan

import pytest

from loadtests.runs.many.record import ENDED, QUEUED, STARTED, Clock, Entry, Job, Observed, worker_log
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, WAITING, WATCHED_S
from loadtests.runs.many.slots import SlotUse, after_faults, figures
from tests.loadtests.runs.many.made_up import WORKER, cut, entry, killed, observed

CLOCK = Clock(0.0)


def line(second: float, event: str, id: str = "j", **more: object) -> dict[str, object]:
    return {"time": f"1970-01-01T00:00:{second:06.3f}Z", "level": "DEBUG", "event": event, "id": id, **more}


def job(second: float, event: str, id: str) -> dict[str, object]:
    return line(second, event, id, **({"tenant": "gold"} if event == QUEUED else {}))


def missed(run: Observed) -> list[str]:
    return [figure.name for figure in figures(run, after_faults(run)) if figure.held is False]


def waiting(begin: float, end: float) -> list[Entry]:
    """More requests than a worker with two slots has jobs, and than may be on their way."""
    return [entry(id=str(number), sent_s=begin, ended_s=end) for number in range(WAITING + 3)]


def test_a_workers_log_tells_the_jobs_their_tenants_and_their_times() -> None:
    log = worker_log(WORKER, [job(1, QUEUED, "a"), job(1.5, STARTED, "a"), job(2, ENDED, "a")], CLOCK)
    assert log.jobs == [Job(WORKER, "gold", 1.0, 1.5, 2.0)]
    assert (log.max_held, log.max_running) == (1, 1)


def test_the_most_jobs_at_once_are_counted_by_the_order_of_lines() -> None:
    """Times of one millisecond are equal; the order is not."""
    ids = ("a", "b", "c")
    lines = [job(1, event, id) for id in ids for event in (QUEUED, STARTED)] + [job(1, ENDED, id) for id in ids]
    assert worker_log(WORKER, lines, CLOCK).max_running == 3
    lines = [job(1, event, id) for id in ids for event in (QUEUED, STARTED, ENDED)]
    assert worker_log(WORKER, lines, CLOCK).max_running == 1
    lines = [job(1, QUEUED, id) for id in ids]
    assert (worker_log(WORKER, lines, CLOCK).max_held, worker_log(WORKER, lines, CLOCK).max_running) == (3, 0)


def test_a_restarted_worker_holds_nothing_of_its_former_process() -> None:
    lines = [job(1, QUEUED, "a"), job(1, STARTED, "a"), line(2, "listening"), job(3, QUEUED, "b"), job(3, STARTED, "b")]
    log = worker_log(WORKER, lines, CLOCK)
    assert log.max_running == 1
    assert [each.ended_s for each in log.jobs] == [None, None]


def test_what_a_worker_took_refused_and_found_wrong_is_in_its_log() -> None:
    lines = [
        line(1, "request", "a", path="/generate", status=200),
        line(1, "request", "b", path="/generate", status=429),
        line(1, "request", "c", path="/lease", status=200),
        {**line(1, "a handler failed"), "level": "ERROR"},
    ]
    log = worker_log(WORKER, lines, CLOCK)
    assert (log.received, log.refused, log.errors) == (["a"], 1, ["worker-0: a handler failed"])


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("max_running", "most jobs in the slots of a worker at once"),
        ("max_held", "most jobs at a worker at once, with those that wait for a slot"),
    ],
)
def test_more_jobs_than_slots_are_never_held(field: str, name: str) -> None:
    run = full()
    setattr(run.workers[0], field, 2)
    assert missed(run) == []
    setattr(run.workers[0], field, 3)
    assert missed(run) == [name]


def full(again_s: float = 0.0) -> Observed:
    """A fault from 10 to 12 s; both slots are in use until it begins, and from `again_s` after its end on."""
    times = ((0.0, 10.0), (12.0 + again_s, 30.0))
    jobs = [Job(WORKER, "gold", begin, begin, end) for begin, end in times for _ in "ab"]
    return observed(*waiting(0.0, 30.0), jobs=jobs, spans=[killed(10.0, 12.0)])


def test_after_a_fault_slots_are_in_use_within_a_leases_time_and_a_second() -> None:
    assert missed(full()) == []
    assert missed(full(AGAIN_WITHIN_S)) == []
    names = ["of these, slots in use again", "slots in use after a fault, the lowest"]
    assert missed(full(AGAIN_WITHIN_S + 0.1)) == names


def test_one_idle_slot_is_seen() -> None:
    run = full()
    run.workers[0].jobs.pop()
    (after,) = after_faults(run)
    assert after.use.share == pytest.approx(0.5)
    assert after.use.waited_s == pytest.approx(WATCHED_S)


def test_idle_slots_are_no_fault_where_nothing_waits() -> None:
    run = full(10.0)
    run.entries = run.entries[:WAITING]
    (after,) = after_faults(run)
    assert not after.is_judged
    assert isnan(after.use.share)


def test_a_fault_is_judged_until_the_next_one_begins() -> None:
    run = full()
    begin = 12.0 + AGAIN_WITHIN_S + 0.6
    run.spans = [*run.spans, cut(begin, begin + 1)]
    first, _ = after_faults(run)
    assert first.use.waited_s == pytest.approx(0.6)


def test_use_counts_slots_and_no_more() -> None:
    jobs = [Job(WORKER, "gold", 0.0, 0.0, 10.0) for _ in range(3)]
    entries = [entry(id=str(number), sent_s=0.0, ended_s=10.0) for number in range(WAITING + 4)]
    assert SlotUse(observed(*entries, jobs=jobs)).between(1.0, 2.0).share == 1.0


def test_a_job_without_an_end_holds_its_slot() -> None:
    run = observed(*waiting(0.0, 10.0), jobs=[Job(WORKER, "gold", 0.0), Job(WORKER, "gold", 0.0, 0.0, 5.0)])
    assert SlotUse(run).between(6.0, 7.0).share == pytest.approx(0.5)
