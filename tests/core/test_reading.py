"""What reading a prompt takes: a start and a slope, told apart as soon as sizes differ."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.reading import Reading

STEP_S, TOKEN_S = 0.024, 0.0001


def fitted(sizes: list[int], prior_s: float | None = None) -> Reading:
    reading = Reading(prior_s)
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


def test_without_an_announcement_equal_sizes_are_taken_for_slope() -> None:
    reading = fitted([100] * 50)
    assert (reading.start_s, reading.seconds(200)) == (
        pytest.approx(0, abs=1e-9),
        pytest.approx(2 * reading.seconds(100)),
    )


def test_nothing_known_is_nothing_claimed() -> None:
    assert Reading().seconds(1000) == 0
    assert Reading(TOKEN_S).seconds(1000) == pytest.approx(1000 * TOKEN_S)


@given(
    st.lists(st.tuples(st.floats(1e-6, 100), st.floats(1, 1e6)), min_size=1, max_size=60),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_neither_part_is_negative_and_the_line_goes_through_the_mean(samples, prior_s) -> None:
    reading = Reading(prior_s)
    weight = time = size = 0.0
    for seconds, tokens in samples:
        reading.add(seconds, tokens)
        fade = 2 ** (-1 / 200)
        weight, time, size = weight * fade + 1, time * fade + seconds, size * fade + tokens
    assert reading.per_token_s >= 0
    assert reading.start_s >= -1e-9 * time
    assert reading.seconds(size / weight) == pytest.approx(time / weight)
