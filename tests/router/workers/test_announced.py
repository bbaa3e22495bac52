"""What workers say of themselves is what the core begins with, before anything has run."""

from __future__ import annotations

import pytest

from services.core.estimator import Estimator
from services.core.scheduler import Scheduler, SchedulerSettings
from services.router.workers.announced import begin_with
from services.router.workers.worker import Worker
from tests.router.fleetrig import fleet_of, worker


def telling(name: str, *, step_ms: float, prefill_ms_per_token: float, slots: int = 4) -> Worker:
    made = worker(name, slots=slots)
    made.step_ms, made.prefill_ms_per_token = step_ms, prefill_ms_per_token
    return made


def begun(*workers: Worker) -> tuple[Scheduler, Estimator]:
    scheduler, fleet = Scheduler(SchedulerSettings(), lambda: 0.5), fleet_of(*workers)
    begin_with(scheduler, fleet, completion_weight=0)
    (pool,) = fleet.pools
    return scheduler, scheduler._pool_stats(pool).estimator


def test_a_token_of_an_answer_costs_its_share_of_a_step_beside_one_that_is_read() -> None:
    scheduler, _ = begun(telling("a", step_ms=20, prefill_ms_per_token=0.5))
    assert scheduler.settings.weights.completion == pytest.approx(20 / 4 / 0.5)


def test_workers_that_read_one_prompt_after_another_are_known_to_from_the_first_request_on() -> None:
    _, one = begun(telling("a", step_ms=20, prefill_ms_per_token=0.5))
    _, two = begun(*(telling(name, step_ms=20, prefill_ms_per_token=0.5) for name in "ab"))
    assert one.prefill_model.per_token_before_s == pytest.approx(0.0005)
    assert two.prefill_model.per_token_before_s == pytest.approx(0.00025)


def test_of_workers_that_say_nothing_nothing_is_known() -> None:
    scheduler, said_nothing = begun(worker("a"))
    assert said_nothing.prefill_model.per_token_before_s == 0
    assert scheduler.settings.weights == SchedulerSettings().weights
