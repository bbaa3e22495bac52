"""What a request takes of the interpreter is counted, not timed: so it can be judged on a machine that is busy."""

from __future__ import annotations

import pytest

from loadtests.bench.silenced import EVERYTHING
from loadtests.bench.steps import by_area, steps

LEAST_OBSERVATION, MOST_OBSERVATION = 0.01, 0.08
"""Of the steps. Less than the least: what was to be silent was not."""
Counted = dict[str, float]


@pytest.fixture(scope="module")
def answer() -> Counted:
    return steps("answers")


def test_observation_is_a_small_part_of_what_an_answer_takes(answer: Counted) -> None:
    whole, silent = sum(answer.values()), sum(steps("answers", EVERYTHING).values())
    assert LEAST_OBSERVATION * whole < whole - silent < MOST_OBSERVATION * whole


def test_a_refusal_takes_less_than_half_of_what_an_answer_does_and_nothing_at_the_worker(answer: Counted) -> None:
    refusal = steps("refusals")
    assert sum(refusal.values()) < sum(answer.values()) / 2
    at_worker = "HTTP to the worker"
    assert by_area(refusal).get(at_worker, 0.0) < 0.05 * by_area(answer)[at_worker]
