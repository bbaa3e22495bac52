"""A tenant's rate, as a contract: what is let in, what is given back, what is owed, and when to come back."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.router.tenancy.rates import Rate

START = 1000.0
ROUNDING_S = 1e-6

rates = st.floats(0.1, 10_000)
sizes = st.floats(0, 50_000)
gaps_s = st.lists(st.tuples(st.floats(0, 5), sizes), min_size=1, max_size=60)


def wait_s(rate: Rate, now: float, tokens: float = 0.0) -> float:
    """What a newcomer would be told; nothing is taken."""
    told = rate.try_take(now, tokens)
    if told is None:
        rate.give_back(now, tokens)
        return 0.0
    return told


def level_s(rate: Rate, now: float) -> float:
    """How far the tokens are from full."""
    assert rate.tokens is not None
    return (rate.tokens.burst - rate.tokens.tokens(now)) / rate.tokens.rate_per_s


@given(rates, gaps_s)
def test_over_any_interval_no_more_tokens_are_taken_than_the_burst_or_the_last_and_the_rate(
    per_s: float, arrivals: list[tuple[float, float]]
) -> None:
    rate, burst = Rate(None, per_s), max(1.0, per_s)
    now, taken = START, []
    for gap_s, tokens in arrivals:
        now += gap_s
        if rate.try_take(now, tokens) is None:
            taken.append((now, tokens))
    for first in range(len(taken)):
        total = 0.0
        for at, tokens in taken[first:]:
            total += tokens
            allowed = max(burst, tokens) + per_s * (at - taken[first][0] + ROUNDING_S)
            assert total <= allowed * (1 + 1e-9)


@given(rates, st.lists(st.floats(0, 2), min_size=1, max_size=80))
def test_over_any_interval_no_more_requests_are_taken_than_the_burst_and_the_rate(
    per_s: float, gaps: list[float]
) -> None:
    rate, burst = Rate(per_s), max(1.0, per_s)
    now, taken = START, []
    for gap_s in gaps:
        now += gap_s
        if rate.try_take(now, 7.0) is None:
            taken.append(now)
    for first, began in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= (burst + per_s * (taken[last] - began + ROUNDING_S)) * (1 + 1e-9)


@given(rates, rates, gaps_s)
def test_who_waits_as_long_as_it_was_told_is_let_in(
    requests_per_s: float, tokens_per_s: float, arrivals: list[tuple[float, float]]
) -> None:
    rate, now = Rate(requests_per_s, tokens_per_s), START
    for gap_s, tokens in arrivals:
        now += gap_s
        told = rate.try_take(now, tokens)
        if told is None:
            continue
        assert 0 < told < math.inf
        now += told
        assert rate.try_take(now, tokens) is None


@given(rates, rates, gaps_s)
def test_a_refusal_takes_nothing_from_either_bucket(
    requests_per_s: float, tokens_per_s: float, arrivals: list[tuple[float, float]]
) -> None:
    rate, now = Rate(requests_per_s, tokens_per_s), START
    for gap_s, tokens in arrivals:
        now += gap_s
        before = repr(rate)
        if rate.try_take(now, tokens) is not None:
            assert repr(rate) == before


@given(rates, st.floats(0, 3), sizes, st.floats(0, 3), st.floats(0, 60))
def test_refused_later_it_is_as_if_it_had_not_come(
    per_s: float, used_s: float, tokens: float, later_s: float, probe_s: float
) -> None:
    came, stayed_away = Rate(per_s, per_s), Rate(per_s, per_s)
    for rate in (came, stayed_away):
        assert rate.try_take(START, used_s * per_s) is None
    assume(came.try_take(START + 1, tokens) is None)
    came.give_back(START + 1 + later_s, tokens)
    at = START + 1 + later_s + probe_s
    assert level_s(came, at) == pytest.approx(level_s(stayed_away, at), abs=1e-6)
    assert wait_s(came, at) == pytest.approx(wait_s(stayed_away, at), abs=1e-6)


@given(rates, sizes, sizes, st.floats(0, 100), st.floats(0, 100))
def test_settling_is_exact_until_the_bucket_was_full_again(
    per_s: float, estimated: float, actual: float, later_s: float, probe_s: float
) -> None:
    guessed, known = Rate(None, per_s), Rate(None, per_s)
    assert guessed.try_take(START, estimated) is None
    assert known.try_take(START, actual) is None
    settled_at = START + later_s
    was_full = level_s(guessed, settled_at) <= 0
    guessed.settle(settled_at, estimated, actual)
    at = settled_at + probe_s
    if not was_full or actual <= estimated:
        assert level_s(guessed, at) == pytest.approx(max(0.0, level_s(known, at)), abs=1e-6)
    else:  # the excess is charged from full: nothing was banked, and nothing more than the excess is owed
        excess_s = (actual - estimated) / per_s
        assert level_s(guessed, settled_at) == pytest.approx(excess_s, abs=1e-6)


@given(rates, gaps_s)
def test_whatever_is_given_back_a_bucket_never_holds_more_than_its_burst(
    per_s: float, arrivals: list[tuple[float, float]]
) -> None:
    rate, now = Rate(per_s, per_s), START
    for gap_s, tokens in arrivals:
        now += gap_s
        rate.give_back(now, tokens)
        assert level_s(rate, now) == 0.0


def test_a_request_larger_than_the_burst_needs_a_full_bucket_and_leaves_a_debt() -> None:
    rate = Rate(None, tokens_per_s=100)
    assert rate.try_take(START, 1000) is None
    assert rate.try_take(START, 1) == pytest.approx(9.01)  # 900 owed, and one to come
    assert rate.try_take(START + 5, 1000) == pytest.approx(5.0)  # until it is full again
    assert rate.try_take(START + 10, 1000) is None


def test_an_answer_that_came_out_longer_is_owed() -> None:
    rate = Rate(None, tokens_per_s=100)
    assert rate.try_take(START, 10) is None
    rate.settle(START, 10, 310)
    assert rate.try_take(START, 0) == pytest.approx(2.1)


def test_a_rate_below_one_a_second_lets_one_in_and_then_one_at_a_time() -> None:
    rate = Rate(0.1)
    assert rate.try_take(START, 0) is None
    assert rate.try_take(START + 4, 0) == pytest.approx(6.0)
    assert rate.try_take(START + 10, 0) is None


def test_the_scarcer_of_the_two_decides() -> None:
    rate = Rate(requests_per_s=2, tokens_per_s=1000)
    assert rate.try_take(START, 1000) is None
    assert rate.try_take(START, 500) == pytest.approx(0.5)
    assert rate.try_take(START, 0) is None
    assert rate.try_take(START, 0) == pytest.approx(0.5)


def test_a_unit_without_a_rate_has_no_limit() -> None:
    requests, tokens = Rate(requests_per_s=5), Rate(None, tokens_per_s=5)
    assert [requests.try_take(START, 1e9) for _ in range(5)] == [None] * 5
    assert [tokens.try_take(START, 0) for _ in range(1000)] == [None] * 1000
    requests.settle(START, 0, 1e9)
    assert requests.try_take(START + 1, 1e9) is None


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_a_crowd_that_obeys_its_hints_is_let_in_at_the_first_return(jitter: float) -> None:
    rate = Rate(requests_per_s=10, tokens_per_s=1000)
    returns = []
    for _ in range(50):
        told = rate.try_take(START, 100)
        if told is not None:
            returns.append(START + rate.hint_s(START, told, 100, lambda: jitter))
    assert len(returns) == 40
    assert len(set(returns)) == 40
    assert all(rate.try_take(at, 100) is None for at in sorted(returns))


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_a_hint_lies_within_its_bounds(wait: float, tokens: float, jitter: float) -> None:
    rate = Rate(0.001, 1.0)
    for _ in range(3):
        assert 0.05 <= rate.hint_s(START, wait, tokens, lambda: jitter) <= 30.0


def test_what_other_routers_took_counts_like_its_own_and_is_not_told_to_them_again() -> None:
    rate = Rate(requests_per_s=10, tokens_per_s=1000)
    assert rate.try_take(START, 100) is None
    rate.take_elsewhere(START, 9, 900.0)
    assert rate.try_take(START, 100) is not None
    assert (rate.taken_requests, rate.taken_tokens) == (1, 100)
    rate.take_elsewhere(START, -1, -100.0)
    assert rate.try_take(START, 100) is None, "they gave some of it back"


def test_what_it_has_taken_is_what_was_let_in_less_what_was_given_back() -> None:
    rate = Rate(requests_per_s=10, tokens_per_s=1000)
    for _ in range(3):
        assert rate.try_take(START, 100) is None
    rate.give_back(START, 100)
    rate.settle(START, 100, 30)
    rate.settle(START, 100, 150)
    assert (rate.taken_requests, rate.taken_tokens) == (2, 180)
