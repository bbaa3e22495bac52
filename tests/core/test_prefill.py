"""What reading a prompt takes: a start and a slope, told apart as soon as sizes differ."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.prefill import PrefillModel

STEP_S, TOKEN_S = 0.024, 0.0001


def fitted(sizes: list[int], prior_s: float | None = None) -> PrefillModel:
    reading = PrefillModel(prior_s)
    for tokens in sizes:
        reading.add(STEP_S + TOKEN_S * tokens, tokens)
    return reading


def test_short_prompts_do_not_make_a_long_one_look_ten_times_slower() -> None:
    short = [15, 22, 30, 18, 25] * 40
    announced = fitted(short, TOKEN_S).seconds(1500)
    assert announced == pytest.approx(STEP_S + 1500 * TOKEN_S, rel=0.05)
    alone = sum(STEP_S + TOKEN_S * tokens for tokens in short) / sum(short) * 1500  # all of it taken for slope
    assert alone > 8 * announced


def test_once_sizes_differ_the_start_and_the_slope_are_told_apart_whatever_was_announced() -> None:
    chance = Random(4)
    reading = fitted([chance.choice((20, 300, 1500)) for _ in range(400)], prior_s=10 * TOKEN_S)
    assert reading.per_token_s == pytest.approx(TOKEN_S, rel=0.15)
    assert reading.start_s == pytest.approx(STEP_S, rel=0.15)


def in_line(
    count: int, prefill_backlog_s: float, *, start_s: float = STEP_S, prior_before_s: float = 0.0
) -> PrefillModel:
    """So many prompts of any size, each behind any number of others."""
    chance, reading = Random(3), PrefillModel(TOKEN_S, prior_before_s)
    for _ in range(count):
        tokens, before = chance.choice((200, 700, 1500)), chance.choice((0, 1000, 3000, 8000))
        reading.add(start_s + TOKEN_S * tokens + prefill_backlog_s * before, tokens, before)
    return reading


def test_what_others_had_still_to_read_is_told_apart_from_a_prompts_own_size() -> None:
    reading = in_line(100, TOKEN_S / 2)
    assert reading.per_token_before_s == pytest.approx(TOKEN_S / 2, rel=0.05)
    assert reading.per_token_s == pytest.approx(TOKEN_S, rel=0.05)
    assert reading.start_s == pytest.approx(STEP_S, rel=0.15)
    assert reading.seconds(1000, 5000) == pytest.approx(STEP_S + 1000 * TOKEN_S + 5000 * TOKEN_S / 2, rel=0.05)
    assert reading.pool_s == pytest.approx(TOKEN_S / 2 * 800, rel=0.1)


def test_the_last_that_were_read_in_time_tell_what_those_who_were_cut_would_have_taken() -> None:
    reading = PrefillModel(TOKEN_S)
    for before in [0, 1000, 2000, 3000] * 10:  # those with more before them never had a first token
        reading.add(STEP_S + TOKEN_S * (1000 + before), 1000, before)
    assert reading.seconds(1000, 9000) == pytest.approx(STEP_S + TOKEN_S * 10_000, rel=0.05)


def test_where_slots_read_side_by_side_what_others_read_costs_nothing() -> None:
    reading = in_line(100, 0.0)
    assert reading.per_token_before_s == pytest.approx(0.0, abs=1e-9)
    assert reading.pool_s == pytest.approx(0.0, abs=1e-6)


def test_two_samples_do_not_outweigh_what_is_announced_of_the_line() -> None:
    reading = PrefillModel(TOKEN_S, TOKEN_S)
    reading.add(1.0, 1000, 2000)
    reading.add(1.0, 1000, 8000)  # as if they had cost nothing
    assert reading.per_token_before_s > 0.5 * TOKEN_S
    for _ in range(50):
        reading.add(1.0, 1000, 2000)
        reading.add(1.0, 1000, 8000)
    assert reading.per_token_before_s < 0.05 * TOKEN_S


def test_without_an_announcement_equal_sizes_are_taken_for_slope() -> None:
    reading = fitted([100] * 50)
    assert (reading.start_s, reading.seconds(200)) == (
        pytest.approx(0, abs=1e-9),
        pytest.approx(2 * reading.seconds(100)),
    )


def test_nothing_known_is_nothing_claimed() -> None:
    assert PrefillModel().seconds(1000) == 0
    assert PrefillModel(TOKEN_S).seconds(1000) == pytest.approx(1000 * TOKEN_S)


@given(
    st.lists(st.tuples(st.floats(1e-6, 100), st.floats(1, 1e6), st.floats(0, 1e7)), min_size=1, max_size=60),
    st.one_of(st.none(), st.floats(0, 1)),
    st.floats(0, 1),
)
def test_no_part_is_negative_and_the_line_goes_through_the_mean(samples, prior_s, prior_before_s) -> None:
    reading = PrefillModel(prior_s, prior_before_s)
    weight = time = size = line = 0.0
    for seconds, tokens, before in samples:
        reading.add(seconds, tokens, before)
        fade = 2 ** (-1 / 200)
        weight, time = weight * fade + 1, time * fade + seconds
        size, line = size * fade + tokens, line * fade + before
    assert reading.per_token_s >= 0
    assert reading.per_token_before_s >= 0
    assert reading.start_s >= -1e-9 * time
    assert reading.seconds(size / weight, line / weight) == pytest.approx(time / weight)


@given(
    st.lists(st.tuples(st.floats(1e-6, 100), st.floats(1, 1e6)), min_size=1, max_size=60),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_where_nobody_reads_before_anybody_what_is_announced_of_the_line_changes_nothing(samples, prior_s) -> None:
    one, other = PrefillModel(prior_s), PrefillModel(prior_s, 0.5)
    for seconds, tokens in samples:
        one.add(seconds, tokens)
        other.add(seconds, tokens)
    assert (one.start_s, one.per_token_s) == (other.start_s, other.per_token_s)
