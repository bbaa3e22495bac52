"""What a request takes of the interpreter is counted, not timed: so it can be judged on a machine that is busy."""

from __future__ import annotations

import pytest

from bench.observing.measure import EVERYTHING
from bench.steps.__main__ import by_area, page, steps

LEAST_OBSERVATION, MOST_OBSERVATION = 0.01, 0.08
"""Of the steps. Less than the least: what was to be silent was not."""
Counted = dict[str, float]


@pytest.fixture(scope="module")
def answer() -> Counted:
    return steps("answers")


@pytest.mark.stack
def test_observation_is_a_small_part_of_what_an_answer_takes(answer: Counted) -> None:
    whole, silent = sum(answer.values()), sum(steps("answers", EVERYTHING).values())
    assert LEAST_OBSERVATION * whole < whole - silent < MOST_OBSERVATION * whole


@pytest.mark.stack
def test_a_refusal_takes_less_than_half_of_what_an_answer_does_and_nothing_at_the_worker(answer: Counted) -> None:
    refusal = steps("refusals")
    assert sum(refusal.values()) < sum(answer.values()) / 2
    at_worker = "HTTP to the worker"
    assert by_area(refusal).get(at_worker, 0.0) < 0.05 * by_area(answer)[at_worker]


def test_every_step_stands_in_one_area_of_the_page() -> None:
    answers = {"router/observing/metrics.py": 30.0, "core/weir.py": 60.0, "odd.py": 10.0}
    core = "deciding: admission, fairness, estimates"
    assert by_area(answers) == {"metrics": 30.0, core: 60.0, "the rest": 10.0}
    whole = {"answers": answers, "refusals": {"core/weir.py": 50.0}}
    written = page(whole, {"answers": 90.0, "refusals": 45.0}, "a machine")
    assert "| **in all** | **100** | **50** |" in written
    assert "10.0% of the steps of answers and 10.0% of the steps of refusals" in written
