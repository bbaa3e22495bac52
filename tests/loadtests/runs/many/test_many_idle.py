"""Why slots were idle after a fault: the workers, the machine's stalls, and routers that took a worker for dead."""

from __future__ import annotations

from math import inf

from loadtests.runs.many.idle import reasons
from loadtests.runs.many.record import Clock, Ejection, ejections
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, WATCHED_S
from loadtests.runs.many.slots import after_faults
from tests.loadtests.runs.many.made_up import ROUTER, WORKER
from tests.loadtests.runs.many.test_many_slots import full


def line(second: float, event: str, worker: str = WORKER) -> dict[str, object]:
    return {"time": f"1970-01-01T00:00:{second:06.3f}Z", "level": "INFO", "event": event, "worker": worker}


def test_a_routers_log_tells_when_it_took_a_worker_for_dead() -> None:
    lines = [
        line(1, "worker up"), line(2, "worker down"), line(2.5, "worker down"), line(3, "worker up"),
        line(4, "worker down", "worker-1"),
    ]  # fmt: skip
    assert ejections(ROUTER, lines, Clock(0.0)) == [
        Ejection(ROUTER, WORKER, 2.0, 3.0),
        Ejection(ROUTER, "worker-1", 4.0, inf),
    ]


def test_a_restarted_router_takes_every_worker_for_alive() -> None:
    lines = [line(2, "worker down"), line(3, "listening"), line(4, "worker up")]
    assert ejections(ROUTER, lines, Clock(0.0)) == [Ejection(ROUTER, WORKER, 2.0, 3.0)]


def test_a_missed_fault_has_its_workers_its_stalls_and_its_ejections() -> None:
    run = full(AGAIN_WITHIN_S + WATCHED_S)
    run.still = lambda begin, end: 0.25
    run.ejections = [Ejection(ROUTER, WORKER, 11.0, 14.5), Ejection(ROUTER, WORKER, 1.0, 2.0)]
    (reason,) = reasons(run, after_faults(run))
    assert reason.startswith("router killed and restarted, router-0: 0.0% in use, 1.75 s after its end")
    assert "jobs at workers with 2 slots: worker-0 0.0" in reason
    assert "the machine stalled for 0.25 of 1.25 s" in reason
    assert reason.endswith("; router-0 took worker-0 for dead until +2.50 s")


def test_a_fault_after_which_slots_were_in_use_needs_no_reason() -> None:
    run = full()
    assert list(reasons(run, after_faults(run))) == []
