"""What clients do: patience, retries, hints; and where each of them ends in the ledger."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from loadtests.simulator.clients import retry_at
from loadtests.simulator.job import Job
from loadtests.simulator.plan import Plan
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.policy import No, Refusal
from loadtests.simulator.report import Ledger
from loadtests.simulator.simulation import Simulation
from services.core.outcome import Outcome
from tests.loadtests.simulator.worlds import Script, Weights, scenario, unmeasured

ONE = {"kind": "slots", "slots": 1, "prefill_tokens_per_s": 1e9, "s_per_token": 0.1, "jitter": 0}
SECOND = {"prompt_tokens": 1, "completion_tokens": 10}  # a service takes a second
EVERY = {"kind": "poisson", "rate_per_s": 4}


def ledger(policy: str = "fifo", worker: dict[str, Any] = ONE, **tenant: Any) -> Ledger:
    return unmeasured(scenario({"arrivals": EVERY, **SECOND, **tenant}, worker=worker), policy).ledger


def test_a_client_without_patience_leaves_before_its_deadline_and_is_gone() -> None:
    told = ledger(deadline_s=100, client_timeout_s=1.5)
    assert told.gone_waiting > 10
    assert told.evicted_total == told.failed_total == told.late == 0


def test_a_client_that_leaves_while_a_worker_answers_is_told_apart() -> None:
    told = ledger(deadline_s=100, client_timeout_s=0.5)
    assert told.gone_running > 0
    assert told.on_time == 0


def test_a_deadline_that_passes_in_the_queue_is_an_eviction_whoever_notices() -> None:
    for policy in ("fifo", "fifo_ttl", "round_robin_ttl_cancel", "vtc"):
        told = ledger(policy, deadline_s={"kind": "choice", "values": [1.2, 8], "weights": [4, 1]})
        assert told.evicted == {"deadline_expired": told.evicted_total}
        assert told.evicted_total > 5


def test_a_patient_client_gets_its_answer_late_unless_the_policy_cancels() -> None:
    assert ledger("fifo", deadline_s=1.5, client_timeout_s=1000).late > 10
    assert ledger("round_robin_ttl_cancel", deadline_s=1.5, client_timeout_s=1000).late == 0


def test_work_for_a_client_that_left_goes_on_and_is_wasted_unless_it_is_cancelled() -> None:
    tenant = {"arrivals": EVERY, **SECOND, "deadline_s": 1.5}
    wasted = {
        policy: unmeasured(scenario(tenant, worker=ONE, duration_s=40), policy).work.wasted_share
        for policy in ("fifo", "round_robin_ttl", "round_robin_ttl_cancel")
    }
    assert wasted["fifo"] > 0.9
    assert wasted["round_robin_ttl"] > wasted["round_robin_ttl_cancel"] > 0


def test_a_lost_worker_fails_its_requests() -> None:
    down = ONE | {"failures": [{"from_s": 2.5, "until_s": 5}]}
    assert ledger(worker=down, deadline_s=100).failed == {"upstream_failed": 1}


def test_a_retry_after_a_lost_worker_is_the_same_request_and_can_be_on_time() -> None:
    down = ONE | {"failures": [{"from_s": 2.5, "until_s": 5}]}
    told = ledger(worker=down, deadline_s=100, retries={"attempts": 1, "wait": "immediate"})
    assert told.attempts == told.distinct + 1
    assert told.on_time == told.distinct


@pytest.mark.parametrize("attempts", [0, 1, 3])
def test_nobody_asks_more_often_than_its_attempts(attempts: int) -> None:
    told = ledger("bounded_fifo", deadline_s=1.2, retries={"attempts": attempts, "wait": "immediate"})
    assert told.distinct <= told.attempts <= told.distinct * (1 + attempts)
    assert (told.attempts > told.distinct) == (attempts > 0)


def test_a_retry_that_keeps_its_deadline_cannot_come_after_it() -> None:
    retries = {"attempts": 3, "wait": "immediate", "keeps_deadline": True}
    told = ledger(deadline_s=1.2, retries=retries)
    assert told.attempts == told.distinct  # they fail by their deadline, and then it is too late


# ---- hints


class Door(Fifo):
    """Refuses every first attempt, and says to come back in two seconds; or says nothing."""

    def __init__(self, hint_s: float | None) -> None:
        super().__init__()
        self.hint_s = hint_s
        self.seen: list[tuple[float, int]] = []

    def offer(self, now: float, job: Job) -> Refusal | None:
        self.seen.append((now, job.attempt))
        return No(Outcome.YIELD, self.hint_s) if job.attempt == 0 else super().offer(now, job)


def at_the_door(hint_s: float | None, wait: str) -> tuple[Door, Simulation]:
    world = scenario({"retries": {"attempts": 2, "wait": wait, "base_s": 1.0}}, worker=ONE)
    door = Door(hint_s)
    simulation = Simulation(world, Script(world, [(1.0, 1, 1, 50.0)]), door, Weights(), seed=1)
    simulation.run_until(10)
    simulation.drain()
    return door, simulation


def test_who_obeys_hints_comes_back_when_told() -> None:
    door, simulation = at_the_door(2.0, "hint")
    assert door.seen == [(1.0, 0), (3.0, 1)]
    hints = simulation.plan.accounts["t0"].hint_counts()
    assert (hints.given, hints.obeyed, hints.first_obeyed, hints.first_obeyed_admitted) == (1, 1, 1, 1)


def test_without_a_hint_who_would_obey_backs_off_and_that_counts_as_no_hint() -> None:
    door, simulation = at_the_door(None, "hint")
    assert [attempt for _, attempt in door.seen] == [0, 1]
    assert 1.0 < door.seen[1][0] < 2.0
    assert simulation.plan.accounts["t0"].hint_counts().obeyed == 0


def test_who_never_retries_does_not_whatever_it_is_told() -> None:
    door, simulation = at_the_door(2.0, "never")
    assert door.seen == [(1.0, 0)]
    assert simulation.plan.accounts["t0"].ledger().rejected == {"yield": 1}


def test_a_impatient_client_comes_back_at_once_whatever_it_is_told() -> None:
    for wait in ("hint", "never"):
        world = scenario({"retries": {"attempts": 2, "wait": wait, "impatient": 1.0}}, worker=ONE)
        made = Plan(world, {"t0": 5.0}, seed=1)
        assert all(job.impatient for job in made.until(2.0))
        job = Plan(world, {"t0": 5.0}, seed=1).until(2.0)[0]
        assert retry_at(7.0, job, 2.0, Random(1)) == 7.0
        assert job.again(9, 7.0, keeps_deadline=False, obeys=False).impatient


def test_the_share_of_impatient_clients_changes_no_arrival_in_the_simulator() -> None:
    def arrivals(impatient: float) -> list[tuple[float, int, bool]]:
        retries = {"attempts": 2, "wait": "hint", "impatient": impatient}
        size = {"kind": "uniform", "low": 1, "high": 99}
        jobs = Plan(scenario({"retries": retries, "prompt_tokens": size}), {"t0": 50.0}, seed=3).until(10.0)
        return [(job.arrived_at, job.prompt_tokens, job.impatient) for job in jobs]

    none, some = arrivals(0.0), arrivals(0.3)
    assert [each[:2] for each in none] == [each[:2] for each in some]
    assert sum(each[2] for each in some) / len(some) == pytest.approx(0.3, abs=0.1)
    assert not any(each[2] for each in none)


def test_backoff_doubles_with_full_jitter() -> None:
    tenant = {"retries": {"attempts": 3, "wait": "backoff", "base_s": 1, "at_most_s": 2}, "deadline_s": 0.5}
    world = scenario({"arrivals": {"kind": "poisson", "rate_per_s": 30}, **SECOND, **tenant}, worker=ONE)
    report = unmeasured(world, "fifo")
    assert report.ledger.attempts > 3 * report.ledger.distinct


# ---- closed loops


def test_a_closed_loop_never_has_more_than_its_clients_under_way() -> None:
    tenant = {"arrivals": {"kind": "closed", "clients": 3, "think_s": 0.5}, **SECOND, "deadline_s": 100}
    report = unmeasured(scenario(tenant, worker=ONE))
    assert report.ledger.on_time == report.ledger.distinct
    assert (
        max(depth + running for depth, running in zip(report.series.queue_depth, report.series.running, strict=True))
        <= 3
    )
    assert report.offered_load is None


def test_a_client_that_is_refused_at_once_still_takes_time_to_ask_again() -> None:
    tenant = {"arrivals": {"kind": "closed", "clients": 220}, **SECOND, "deadline_s": 100}
    report = unmeasured(scenario(tenant, worker=ONE, duration_s=2), "bounded_fifo")
    assert 0 < report.ledger.rejected_total <= 20 * 100 * 2  # 19 or 20 are refused, a hundred times a second


def test_clients_of_a_closed_loop_come_and_go_with_its_phases() -> None:
    """Each of them asks every other second: a second of thinking, and one of service."""
    phase = {"from_s": 2, "until_s": 6, "clients": 3}
    wide, closed = ONE | {"slots": 8}, {"kind": "closed", "think_s": 1}
    crowd = ledger(worker=wide, arrivals={**closed, "clients": 0, "phases": [phase]}, deadline_s=100)
    assert crowd.distinct == 3 * 2
    more = ledger(worker=wide, arrivals={**closed, "clients": 1, "phases": [phase]}, deadline_s=100)
    assert more.distinct == 5 + 2 * 2
