"""A bucket against tokens that are counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.bucket import Bucket

RATE, BURST = 5.0, 20.0


class AgainstCountedTokens(RuleBasedStateMachine):
    """The same takes from a bucket and from a number that is filled step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket(RATE, BURST)
        self.now = 100.0
        self.tokens = BURST
        self.history: list[tuple[float, float]] = []

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tokens = min(BURST, self.tokens + seconds * RATE)

    @rule(n=st.floats(0, 1.5 * BURST))
    def take(self, n: float) -> None:
        close = abs(n - self.tokens) < 1e-6
        taken = self.bucket.try_take(self.now, n)
        assert close or taken == (n <= self.tokens)
        if taken:
            self.tokens -= n
            self.history.append((self.now, n))

    @precondition(lambda self: bool(self.history) and self.history[-1][1] > 0)
    @rule(share=st.floats(0, 1))
    def give_some_of_the_last_take_back(self, share: float) -> None:
        _, n = self.history[-1]
        self.bucket.give_back(self.now, n * share)
        self.tokens = min(BURST, self.tokens + n * share)
        self.history.append((self.now, -n * share))

    @rule(n=st.floats(0, BURST))
    def wait_and_take(self, n: float) -> None:
        self.time_passes(self.bucket.wait_s(self.now, n))
        assert self.bucket.try_take(self.now, n)
        self.tokens -= n
        self.history.append((self.now, n))

    @invariant()
    def they_hold_the_same(self) -> None:
        assert self.bucket.tokens(self.now) == pytest.approx(self.tokens, abs=1e-5)

    @invariant()
    def nothing_exceeds_rate_and_burst(self) -> None:
        taken = 0.0
        for when, n in reversed(self.history):
            taken += n
            assert taken <= BURST + RATE * (self.now - when) + 1e-5


TestAgainstCountedTokens = AgainstCountedTokens.TestCase


def test_a_burst_passes_at_once_and_then_the_rate() -> None:
    bucket = Bucket(rate_per_s=10, burst=3)
    assert [bucket.try_take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_s(0.0) == pytest.approx(0.1)
    assert [bucket.try_take(0.1) for _ in range(2)] == [True, False]


def test_what_was_refused_costs_nothing() -> None:
    bucket = Bucket(rate_per_s=1, burst=1)
    bucket.try_take(0.0)
    for _ in range(1000):
        assert not bucket.try_take(0.5)
    assert bucket.try_take(1.0)


def test_more_than_the_burst_never_fits() -> None:
    assert Bucket(1, 5).wait_s(0.0, 5.1) == math.inf
    assert not Bucket(1, 5).try_take(1e9, 5.1)


@given(st.floats(0, 1e6), st.floats(0.1, 100))
def test_a_full_bucket_cannot_be_overfilled(now: float, n: float) -> None:
    bucket = Bucket(rate_per_s=2, burst=7)
    bucket.give_back(now, n)
    assert bucket.tokens(now) == 7
    assert not bucket.try_take(now, 7.1)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (math.inf, 1), (1, math.inf), (math.nan, 1)])
def test_a_bucket_that_cannot_be_is_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0 and finite"):
        Bucket(*pair)


def test_less_than_nothing_cannot_be_taken_or_given() -> None:
    with pytest.raises(ValueError, match="n must be"):
        Bucket(1, 1).try_take(0.0, -1)
    with pytest.raises(ValueError, match="n must be"):
        Bucket(1, 1).give_back(0.0, -1)


def test_its_repr_tells_its_state() -> None:
    bucket = Bucket(2, 10)
    bucket.try_take(5.0, 4)
    assert repr(bucket) == "<Bucket 2/s, burst 10, full at 7>"
