"""The retry budget holds whatever fails, whenever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.retries import SLICES, RetryBudget

attempts = st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=400)


@given(attempts, st.floats(0, 1), st.floats(0, 3), st.floats(0.5, 20))
def test_retries_stay_within_their_share_over_any_time(
    attempts: list[tuple[float, bool]], share: float, min_per_s: float, window_s: float
) -> None:
    """Each step is a pause, then a first attempt or as many retries as the budget lets through, up to five."""
    budget, now, first, retries = RetryBudget(share, min_per_s=min_per_s, window_s=window_s), 0.0, 0, 0
    for pause, is_first in attempts:
        now += pause
        if is_first:
            budget.sent(now)
            first += 1
        else:
            retries += sum(budget.try_retry(now) for _ in range(5))
        allowed = share * first + min_per_s * window_s * (1 + now / (0.9 * window_s))
        assert retries <= allowed + 1e-6, budget


@given(attempts, st.floats(0.5, 20))
def test_it_counts_exactly_what_its_window_holds(attempts: list[tuple[float, bool]], window_s: float) -> None:
    budget, now = RetryBudget(0.5, min_per_s=0.2, window_s=window_s), 0.0
    log: list[tuple[int, bool]] = []
    for pause, is_first in attempts:
        now += pause
        newest = int(now * SLICES / window_s)
        held = [kind for number, kind in log if number > newest - SLICES]
        if is_first:
            budget.sent(now)
        elif budget.try_retry(now):
            assert held.count(False) + 1 <= 0.5 * held.count(True) + 0.2 * window_s
        else:
            assert held.count(False) + 1 > 0.5 * held.count(True) + 0.2 * window_s
            continue
        log.append((newest, is_first))
        held.append(is_first)
        assert (budget.first_in_window, budget.retries_in_window) == (held.count(True), held.count(False))


def test_when_everything_fails_one_in_ten_is_tried_again() -> None:
    budget, retried = RetryBudget(0.10, min_per_s=0, window_s=10), 0
    for k in range(10_000):
        budget.sent(k * 0.01)
        retried += budget.try_retry(k * 0.01)
    assert retried == pytest.approx(1000, abs=10)
    assert budget.refused_total == 10_000 - retried


def test_little_traffic_may_still_retry() -> None:
    budget = RetryBudget(0.10, min_per_s=0.5, window_s=10)
    budget.sent(0.0)
    assert [budget.try_retry(0.1) for _ in range(6)] == [True] * 5 + [False]


def test_old_attempts_pay_for_nothing() -> None:
    budget = RetryBudget(0.10, min_per_s=0, window_s=10)
    for _ in range(100):
        budget.sent(0.0)
    assert budget.try_retry(9.9)
    assert not budget.try_retry(10.0)


def test_after_any_pause_the_state_is_small_and_fresh() -> None:
    budget = RetryBudget(0.10, min_per_s=0.1, window_s=10)
    for second in range(10):
        budget.sent(float(second))
    budget.sent(1e9)
    assert (budget.first_in_window, budget.retries_in_window) == (1, 0)


@pytest.mark.parametrize(
    "arguments",
    [{"share": -0.1}, {"share": 1.1}, {"min_per_s": -1}, {"min_per_s": math.nan}, {"window_s": 0}],
)
def test_a_budget_that_cannot_be_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RetryBudget(**arguments)


def test_its_repr_tells_its_state() -> None:
    budget = RetryBudget(0.5, min_per_s=0, window_s=10)
    budget.sent(1.0)
    budget.sent(1.0)
    assert [budget.try_retry(1.0), budget.try_retry(1.0)] == [True, False]
    assert repr(budget) == "<RetryBudget 1 retries for 2 first attempts in 10 s, refused 1>"
