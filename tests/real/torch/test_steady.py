"""The chunk of a prompt that a step may read, beside those who write. Needs no torch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine import Step
from services.worker.engines.torch.steady import SteadySteps

DECODE_S = 0.010


def decode(seconds: float = DECODE_S) -> Step:
    return Step(seconds, batch_size=7, prefill_tokens=0)


def reading(steady: SteadySteps, per_token_s: float) -> Step:
    return Step(DECODE_S + steady.tokens * per_token_s, batch_size=8, prefill_tokens=steady.tokens)


@given(st.floats(1e-5, 1e-3), st.integers(16, 1000))
def test_whatever_reading_costs_a_step_soon_takes_less_than_twice_as_long(per_token_s: float, first: int) -> None:
    steady = SteadySteps(DECODE_S, tokens=first, min_tokens=16, max_tokens=1000)
    for _ in range(60):
        steady.took(reading(steady, per_token_s))
    share = steady.tokens * per_token_s / DECODE_S
    assert share <= 0.75 or steady.tokens == 16
    assert share >= 0.65 or steady.tokens == 1000


def test_a_prompt_that_costs_more_the_longer_it_is_never_takes_a_step_far_beyond() -> None:
    steady = SteadySteps(DECODE_S, tokens=100, min_tokens=16, max_tokens=512)
    at, shares = 0, []
    while at < 4000:
        per_token_s = DECODE_S / 150 * (1 + at / 1000)  # attention to all that was read
        step = reading(steady, per_token_s)
        shares.append(step.duration_s / DECODE_S - 1)
        at += steady.tokens
        steady.took(step)
    assert max(shares) <= 1.0
    assert steady.tokens < 40


def test_a_piece_that_is_no_full_chunk_teaches_nothing() -> None:
    steady = SteadySteps(DECODE_S, tokens=100, min_tokens=16, max_tokens=512)
    steady.took(Step(10.0, batch_size=8, prefill_tokens=99))
    assert steady.tokens == 100


def test_it_follows_the_pace_of_those_who_write_and_keeps_its_bounds() -> None:
    steady = SteadySteps(DECODE_S, tokens=100, min_tokens=16, max_tokens=120)
    for _ in range(50):
        steady.took(decode(10 * DECODE_S))
        steady.took(Step(11 * DECODE_S, batch_size=8, prefill_tokens=steady.tokens))
    assert steady.tokens == 120
    for _ in range(50):
        steady.took(decode(DECODE_S))
        steady.took(Step(11 * DECODE_S, batch_size=8, prefill_tokens=steady.tokens))
    assert steady.tokens == 16


def test_bounds_that_hold_nothing_are_refused() -> None:
    for wrong in ({"min_tokens": 0, "max_tokens": 5}, {"min_tokens": 9, "max_tokens": 5}):
        with pytest.raises(ValueError, match="no chunk"):
            SteadySteps(DECODE_S, tokens=5, **wrong)
