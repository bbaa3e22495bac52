"""What workers can do: announced until measured, measured under load, and at once less when one is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.estimator import ENOUGH, LEAD_SHARE, LEAD_TOKENS, MAX_LEAD_S, Estimator
from services.core.request import Request, Stage


def running(now: float, estimator: Estimator, service_s: float = 1.0) -> Request:
    """A request that takes a slot now."""
    request = Request(0, "a", arrived_at=now, deadline=now + 10, prompt_tokens=100, max_tokens=100)
    request.stage, request.started_at = Stage.RUNNING, now
    estimator.start(now, request, service_s)
    return request


def end(now: float, estimator: Estimator, request: Request, work: float) -> None:
    estimator.stop(now)
    request.stage = Stage.ENDED
    estimator.learn(now, request, work)


def served(estimator: Estimator, *, count: int, side_by_side: int, seconds: float, work: float) -> None:
    """So many requests in rows of `side_by_side`."""
    now = 0.0
    for _ in range(count // side_by_side):
        row = [running(now, estimator) for _ in range(side_by_side)]
        now += seconds
        for request in row:
            end(now, estimator, request, work)


def estimator_of(slots: int, **announced: Any) -> Estimator:
    estimator = Estimator(**announced)
    estimator.resize(0.0, slots)
    return estimator


def test_nothing_is_known_before_anything_was_seen_or_announced() -> None:
    estimator = estimator_of(4)
    assert estimator.rate is None
    assert (estimator.service_s(1000, 1000), estimator.prefill_s(1000, 0.99), estimator.token_s(0.99)) == (0, 0, 0)
    assert estimator.next_slot_s(0.0) == 0.0


def test_capacity_is_what_workers_announced_until_it_was_measured_under_load() -> None:
    estimator = estimator_of(2, work_per_slot_s=100.0)
    served(estimator, count=ENOUGH - 2, side_by_side=2, seconds=1.0, work=70.0)
    assert estimator.rate == 200.0
    served(estimator, count=2, side_by_side=2, seconds=1.0, work=70.0)
    assert estimator.rate == pytest.approx(140.0)


def test_a_slot_that_ran_beside_idle_ones_says_nothing_about_capacity() -> None:
    estimator = estimator_of(4, work_per_slot_s=100.0)
    served(estimator, count=10 * ENOUGH, side_by_side=1, seconds=0.1, work=100.0)  # ten times as fast, alone
    assert estimator.rate == 400.0


def test_without_any_word_of_the_workers_what_was_seen_at_any_load_must_do() -> None:
    estimator = estimator_of(4)
    served(estimator, count=1, side_by_side=1, seconds=0.5, work=100.0)
    assert estimator.rate == pytest.approx(800.0)


def test_a_lost_worker_shows_at_once() -> None:
    estimator = estimator_of(8)
    served(estimator, count=80, side_by_side=8, seconds=1.0, work=50.0)
    assert estimator.rate == pytest.approx(400.0)
    estimator.resize(20.0, 6)
    assert estimator.rate == pytest.approx(300.0)
    estimator.resize(20.0, 0)
    assert estimator.rate is None
    estimator.resize(20.0, 8)
    assert estimator.rate == pytest.approx(400.0)


def test_capacity_is_a_ratio_of_sums_so_that_short_answers_do_not_outvote_long_ones() -> None:
    estimator = estimator_of(1)
    now = 0.0
    for _ in range(300):
        for seconds, work in [(0.1, 100.0)] * 9 + [(9.1, 100.0)]:  # a mean of ratios would say 901
            request = running(now, estimator)
            now += seconds
            end(now, estimator, request, work)
    assert estimator.rate == pytest.approx(100.0, rel=0.02)


def test_cancelled_work_took_its_slot_and_counts() -> None:
    estimator = estimator_of(1)
    served(estimator, count=ENOUGH, side_by_side=1, seconds=1.0, work=100.0)
    served(estimator, count=ENOUGH, side_by_side=1, seconds=1.0, work=0.0)
    assert estimator.rate is not None
    assert estimator.rate < 60.0


def reading(estimator: Estimator, count: int, *, prompt: int, behind: int, s_per_token: float, work: float) -> None:
    """So many prompts, one after another in pairs: the second has the first before it."""
    now = 0.0
    for _ in range(count):
        row = [running(now, estimator) for _ in range(behind)]
        for place, request in enumerate(row):
            estimator.begin_prefill(request, prompt)
            assert request.read_before_tokens == place * prompt
        for request in row:
            now += prompt * s_per_token
            estimator.end_prefill(request)
            estimator.learn_prefill(now - request.started_at, prompt, request.read_before_tokens)
        for request in row:
            end(now, estimator, request, work)


def test_where_reading_fills_the_time_before_the_slots_are_full_capacity_is_what_can_be_read() -> None:
    estimator = estimator_of(16, work_per_slot_s=1000.0, prefill_s_per_token=1e-4)
    reading(estimator, 40, prompt=1000, behind=5, s_per_token=1e-4, work=1200.0)
    assert estimator.rate == pytest.approx(12_000.0, rel=0.1)  # a prompt each 0.1 s, and 1,200 tokens of work with it


def test_what_is_read_is_taken_off_once_however_it_ended() -> None:
    estimator = estimator_of(4)
    one, other = running(0.0, estimator), running(0.0, estimator)
    estimator.begin_prefill(one, 700)
    estimator.begin_prefill(other, 300)
    assert (estimator.unread_tokens, other.read_before_tokens) == (1000, 700)
    estimator.end_prefill(one)
    estimator.end_prefill(one)
    assert estimator.unread_tokens == 300
    estimator.end_prefill(other)
    assert estimator.unread_tokens == 0


def test_a_prompt_is_read_after_those_that_are_unread_where_workers_say_that_they_read_in_a_line() -> None:
    alone, in_line = estimator_of(8, prefill_s_per_token=1e-3), estimator_of(8, prefill_s_per_token=1e-3, readers=2)
    for estimator in (alone, in_line):
        estimator.begin_prefill(running(0.0, estimator), 1000)
    assert (alone.prefill_s(100), in_line.prefill_s(100)) == (pytest.approx(0.1), pytest.approx(0.6))
    assert in_line.prefill_backlog_s(1000) == pytest.approx(1.0)
    assert in_line.service_s(100, 0) == pytest.approx(0.1), "of its own"


def test_the_next_slot_comes_free_at_the_first_end_that_is_expected() -> None:
    estimator = estimator_of(3, work_per_slot_s=100.0)
    for service_s in (9.0, 4.0, 6.0):
        running(0.0, estimator, service_s)
    assert estimator.next_slot_s(1.0) == pytest.approx(3.0)


def test_while_a_slot_is_free_nobody_waits_for_one() -> None:
    estimator = estimator_of(2, work_per_slot_s=100.0)
    running(0.0, estimator, 5.0)
    assert (estimator.free, estimator.next_slot_s(0.0)) == (1, 0.0)


def test_who_ended_early_is_not_waited_for() -> None:
    estimator = estimator_of(2, work_per_slot_s=100.0)
    gone = running(0.0, estimator, 2.0)
    running(0.0, estimator, 5.0)
    end(1.0, estimator, gone, 10.0)
    running(1.0, estimator, 7.0)
    assert estimator.next_slot_s(1.0) == pytest.approx(4.0)


def test_of_one_that_is_overdue_nothing_is_known_but_how_often_slots_come_free() -> None:
    estimator = estimator_of(2, work_per_slot_s=100.0)
    served(estimator, count=ENOUGH, side_by_side=2, seconds=1.0, work=100.0)
    running(20.0, estimator, 0.5)
    running(20.0, estimator, 0.5)
    assert estimator.next_slot_s(22.0) == pytest.approx(100.0 / 200.0)


def test_expected_ends_are_forgotten_in_a_house_that_never_fills() -> None:
    estimator = estimator_of(4, work_per_slot_s=100.0)
    served(estimator, count=2000, side_by_side=1, seconds=1.0, work=100.0)
    assert len(estimator._ends) <= 100


def test_expected_ends_are_forgotten_behind_one_that_hangs() -> None:
    estimator = estimator_of(2, work_per_slot_s=100.0)
    running(0.0, estimator, 0.1)
    for at in range(2000):
        request = running(float(at), estimator, 1.0)
        estimator.next_slot_s(at + 0.5)
        end(at + 0.9, estimator, request, 100.0)
    assert len(estimator._ends) <= 100


@given(st.lists(st.floats(0.001, 50), min_size=1, max_size=300), st.integers(1, 8))
def test_however_often_ends_are_forgotten_the_first_stays_the_first(ends_s: list[float], slots: int) -> None:
    estimator = estimator_of(slots, work_per_slot_s=100.0)
    known: list[tuple[float, Request]] = []
    for at, service_s in enumerate(ends_s):
        now = float(at)
        if len(known) == slots:
            known.sort(key=lambda each: each[0])
            end(now, estimator, known.pop(at % slots)[1], 100.0)
        known.append((now + service_s, running(now, estimator, service_s)))
        first = min(when for when, _ in known)
        if len(known) == slots and first > now:
            assert estimator.next_slot_s(now) == pytest.approx(first - now)


def test_busy_slots_that_are_lost_leave_none_free() -> None:
    estimator = estimator_of(4)
    for _ in range(3):
        running(0.0, estimator)
    estimator.resize(1.0, 2)
    assert (estimator.busy, estimator.slots, estimator.free) == (3, 2, 0)


def test_no_slots_below_zero() -> None:
    with pytest.raises(ValueError, match="slots must be at least 0, got -1"):
        estimator_of(-1)


def test_service_is_prefill_which_gives_the_first_token_and_a_time_for_each_of_the_others() -> None:
    estimator = estimator_of(1, prefill_s_per_token=0.001, s_per_token=0.02)
    assert estimator.service_s(500, 10) == pytest.approx(0.5 + 9 * 0.02)
    assert estimator.prefill_s(500) == estimator.service_s(500, 0) == estimator.service_s(500, 1) == pytest.approx(0.5)


def test_what_is_learned_of_equal_requests_is_how_long_they_took() -> None:
    estimator = estimator_of(1)
    for _ in range(50):  # 0.3 s to the first of eight tokens, the last after 1 s
        estimator.learn_prefill(0.3, 100)
        estimator.learn_pace(0.7, 7)
    assert estimator.service_s(100, 8) == pytest.approx(1.0)
    assert estimator.probable_s(100, 8) == pytest.approx(1.0)


def test_prefill_is_cautious_by_how_far_it_has_been_off() -> None:
    estimator = estimator_of(1)
    for at in range(1000):
        tokens = 100 * (1 + at % 7)
        estimator.learn_prefill(tokens * 0.001 * (2.0 if at % 10 == 0 else 0.9), tokens)
    mean = estimator.prefill_s(1000)
    assert mean == pytest.approx(1.01, rel=0.05)
    assert estimator.prefill_s(1000, 0.5) == pytest.approx(0.9, rel=0.06)
    assert estimator.prefill_s(1000, 0.99) == pytest.approx(2.0, rel=0.06)


def test_a_short_prompt_that_waited_for_a_long_one_makes_nobody_afraid_of_long_ones() -> None:
    estimator = estimator_of(1, prefill_s_per_token=0.0002)
    for at in range(60):  # each waits for the step that runs; a short one may meet the reading of a long one in it
        estimator.learn_prefill(0.15 if at % 6 == 5 else 0.02, 50)
        estimator.learn_prefill(0.02 + 1000 * 0.0002, 1000)
    assert estimator.prefill_s(1000) == pytest.approx(0.22, rel=0.15)
    assert estimator.prefill_s(1000, 0.99) < 3 * 0.22


def test_time_per_token_is_known_at_every_quantile() -> None:
    estimator = estimator_of(1)
    for at in range(1000):
        estimator.learn_pace((0.05 if at % 5 == 0 else 0.01) * 10, 10)
    assert estimator.token_s(0.5) == pytest.approx(0.01, rel=0.03)
    assert estimator.token_s(0.9) == pytest.approx(0.05, rel=0.03)
    assert estimator.service_s(0, 101) == pytest.approx(1.0, rel=0.03)


def test_samples_of_nothing_teach_nothing() -> None:
    estimator = estimator_of(1, prefill_s_per_token=0.001, s_per_token=0.02)
    estimator.learn_prefill(5.0, 0)
    estimator.learn_pace(5.0, 0)
    estimator.learn_pace(0.0, 5)
    request = running(3.0, estimator)
    end(3.0, estimator, request, 100.0)  # ended in the moment in which it began
    assert estimator.service_s(500, 10) == pytest.approx(0.5 + 9 * 0.02)
    assert estimator.rate is None
    assert "rate unknown" in repr(estimator)


def ended(estimator: Estimator, count: int, *, late_s: float) -> None:
    """So many answers of 100 tokens in 1 s, each so much later than expected."""
    estimator.learn_pace(1.0, 100.0)
    for number in range(count):
        request = running(10.0 * number, estimator, service_s=1.0)
        estimator.learn_end(10.0 * number + 1.0 + late_s, request)
        end(10.0 * number + 1.0 + late_s, estimator, request, 200.0)


def test_a_request_is_sent_ahead_by_the_time_of_a_token_where_ends_come_as_expected() -> None:
    estimator = estimator_of(1)
    assert estimator.lead_s == 0.0, "nothing is known"
    ended(estimator, 40, late_s=0.0)
    assert estimator.lead_s == pytest.approx(LEAD_TOKENS * 0.01, rel=0.03)


def test_nothing_is_sent_ahead_where_ends_come_later_than_expected() -> None:
    estimator = estimator_of(1)
    ended(estimator, 40, late_s=0.0)
    ended(estimator, 10, late_s=0.5)
    assert estimator.lead_s == 0.0
    ended(estimator, 40, late_s=0.0)
    assert estimator.lead_s > 0.0


def test_the_lead_is_a_part_of_an_answer_at_most() -> None:
    estimator = estimator_of(4)
    estimator.learn_pace(1.0, 1.0)
    for number in range(80):
        request = running(float(number), estimator, service_s=0.1)
        estimator.learn_end(number + 0.1, request)
        end(number + 0.1, estimator, request, 10.0)
    assert estimator.lead_s == pytest.approx(LEAD_SHARE * 0.1)
    slow = estimator_of(1)
    slow.learn_pace(1.0, 1.0)
    for number in range(80):
        request = running(10.0 * number, slow, service_s=8.0)
        slow.learn_end(10.0 * number + 8.0, request)
        end(10.0 * number + 8.0, slow, request, 10.0)
    assert slow.lead_s == MAX_LEAD_S
