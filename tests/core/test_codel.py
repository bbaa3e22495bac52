"""A burst may use all its slack; a line that never empties is kept short, and never below its target."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from services.core.codel import STEP, WINDOW_S, CoDelLimiter

TARGET_S, SLACK_S = 0.1, 0.8


def stand(queue: CoDelLimiter, from_s: float, until_s: float, backlog_s: float, *, target_s: float = TARGET_S) -> None:
    """Starts, ten a second, that each leave so much behind."""
    for tenth in range(round(from_s * 10), round(until_s * 10)):
        queue.sample(tenth / 10, backlog_s, target_s, SLACK_S)


def test_without_a_line_there_is_no_limit() -> None:
    queue = CoDelLimiter()
    assert queue.limit_s == inf
    stand(queue, 0, 20, 0.0)
    assert queue.limit_s == inf


def test_a_queue_that_stands_is_cut_short_window_by_window() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 0.6, 0.5)
    assert queue.limit_s == SLACK_S * STEP
    stand(queue, 0.6, 1.1, 0.5)
    assert queue.limit_s == SLACK_S * STEP * STEP


def test_the_limit_is_never_below_the_target() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 60, 0.5)
    assert queue.limit_s == TARGET_S


def test_a_burst_that_drains_within_a_window_is_let_through() -> None:
    queue = CoDelLimiter()
    for second in range(30):
        for tenth, backlog_s in enumerate([0.7, 0.6, 0.4, 0.2, 0.0] * 2):
            queue.sample(second + tenth / 10, backlog_s, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_one_empty_line_in_a_window_is_enough() -> None:
    queue = CoDelLimiter()
    for tenth in range(100):
        queue.sample(tenth / 10, 0.0 if tenth % 5 == 3 else 0.7, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_when_the_queue_no_longer_stands_the_limit_recovers_up_to_the_slack() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    assert queue.limit_s < 0.2
    stand(queue, 3, 4.2, 0.0)
    assert 0.2 < queue.limit_s < SLACK_S
    stand(queue, 4.2, 8, 0.0)
    assert queue.limit_s == inf


def test_silence_is_as_good_as_an_empty_line_for_every_window_that_passed() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    queue.sample(3.1, 0.0, TARGET_S, SLACK_S)
    queue.sample(60.0, 0.7, TARGET_S, SLACK_S)
    assert queue.limit_s == inf


def test_a_window_is_as_long_as_a_service() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 1.9, 3.0, target_s=2.0)
    assert queue.limit_s == inf
    queue.sample(2.0, 3.0, 2.0, 20.0)
    assert queue.limit_s == 20.0 * STEP


def test_a_day_of_silence_is_counted_without_overflow() -> None:
    queue = CoDelLimiter()
    stand(queue, 0, 3, 0.5)
    queue.sample(3.1, 0.0, TARGET_S, SLACK_S)
    queue.sample(1e9, 0.0, TARGET_S, SLACK_S)
    assert queue.limit_s == inf
    assert repr(queue) == "<CoDelLimiter limit inf s>"


@given(
    st.lists(st.tuples(st.floats(0, 5 * WINDOW_S), st.floats(0, 10), st.floats(0.01, 3), st.floats(0, 10)), max_size=80)
)
def test_whatever_stands_the_limit_is_at_least_the_least_target(samples: list[tuple[float, ...]]) -> None:
    queue, now = CoDelLimiter(), 0.0
    for pause_s, backlog_s, target_s, slack_s in samples:
        now += pause_s
        prefill_backlog_s = queue.limit_s
        queue.sample(now, backlog_s, target_s, slack_s)
        assert queue.limit_s >= min(target for _, _, target, _ in samples)
        if queue.limit_s < prefill_backlog_s:
            assert queue.limit_s >= target_s
