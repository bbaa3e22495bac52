"""The adaptive limit: it finds a server's knee, learns nothing from an idle application, and comes back."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.adaptive import AdaptiveLimit


def batch(a: float = 0.020, b: float = 0.0005) -> Callable[[int], float]:
    """A server that computes everyone's next token in one step of a + b * n seconds."""
    return lambda inflight: a + b * inflight


@dataclass
class Server:
    """What is behind the limit: clients who always ask again, and answers at the server's pace."""

    limit: AdaptiveLimit
    pace: Callable[[int], float]
    mean_tokens: float = 50.0
    chance: Random = field(default_factory=lambda: Random(1))
    now: float = 0.0
    ends: list[tuple[float, int, float]] = field(default_factory=list)
    started: int = 0

    def serve(self, requests: int, *, clients: int = 10_000) -> int:
        for _ in range(requests):
            while self.limit.inflight < clients and self.limit.try_take():
                self._start()
            self.now, _, pace = heapq.heappop(self.ends)
            self.limit.give_back(pace)
        return self.limit.cap

    def _start(self) -> None:
        pace = self.pace(self.limit.inflight) * self.chance.uniform(0.9, 1.1)
        tokens = 1 + self.chance.expovariate(1 / self.mean_tokens)
        self.started += 1
        heapq.heappush(self.ends, (self.now + pace * tokens, self.started, pace))


def limit(min_limit: int = 4, max_limit: int = 200, tolerance: float = 2.0) -> AdaptiveLimit:
    return AdaptiveLimit(min_limit=min_limit, max_limit=max_limit, tolerance=tolerance)


# Where it settles


@pytest.mark.parametrize("tolerance", [1.5, 2.0, 3.0])
def test_it_settles_where_the_pace_is_the_tolerated_multiple_of_the_unhurried_one(tolerance: float):
    server = Server(limit(tolerance=tolerance), batch())
    server.serve(1000)
    settled = [server.serve(100) for _ in range(20)]
    knee = (tolerance * (0.020 + 0.0005 * 4) - 0.020) / 0.0005
    assert 0.88 * knee < min(settled) <= max(settled) < 1.12 * knee
    throughput = knee / batch()(round(knee)) * 0.0005  # as a share of 1 / b, what no limit would reach
    assert throughput >= 1 - 1 / tolerance


def test_long_answers_are_not_congestion():
    short, long = Server(limit(), batch(), mean_tokens=10), Server(limit(), batch(), mean_tokens=1000)
    assert short.serve(3000) == pytest.approx(long.serve(3000), rel=0.1)


def test_without_congestion_it_reaches_its_upper_bound():
    assert Server(limit(max_limit=64), batch(b=0.0)).serve(3000) == 64


@given(st.integers(1, 60))
def test_it_does_not_grow_while_the_application_is_the_limit(clients: int):
    asked = limit(min_limit=2)
    Server(asked, batch(b=0.0)).serve(1500, clients=clients)
    assert asked.cap <= clients + math.sqrt(clients) + 1


# How it moves


def test_it_shrinks_under_congestion_and_recovers_when_that_has_passed():
    server = Server(limit(), batch())
    before = server.serve(2000)
    server.pace = batch(a=0.060)
    assert server.serve(300) < before / 3
    server.pace = batch()
    assert server.serve(2000) > 0.85 * before


def test_a_server_that_became_slower_for_good_is_learned_as_normal():
    server = Server(limit(), batch())
    before = server.serve(2000)
    server.pace = batch(a=0.050, b=0.00125)
    assert server.serve(4000) == pytest.approx(before, rel=0.15)
    assert server.limit.baseline == pytest.approx(0.055, rel=0.15)


def test_lasting_congestion_is_not_learned_as_normal():
    server = Server(limit(), batch())
    server.serve(1000)
    caps = [server.serve(1000) for _ in range(20)]
    assert max(caps) < 1.2 * min(caps)


def test_chance_does_not_drag_the_baseline_down_for_ever():
    held = grown(16)
    chance = Random(1)
    for _ in range(16 * 400):
        take_all(held)
        held.give_back(chance.uniform(0.2, 1.8))
    assert held.baseline > 0.75  # though the medians of many of the 400 rounds are below


def test_what_was_started_before_it_shrank_does_not_shrink_it_again():
    held = grown(1000)
    take_all(held)
    while held.inflight:
        held.give_back(1000.0)
    assert held.cap == 500  # by half, once, though a round is 256 of the thousand who said so


def test_an_upstream_that_refuses_takes_off_a_tenth_once_a_round():
    held = grown(100)
    take_all(held)
    for _ in range(30):
        held.give_back(overloaded=True)
    assert held.cap == 90
    for _ in range(60):
        held.give_back(overloaded=True)
    assert (held.cap, held.inflight) == (90, 10)
    take_all(held)
    held.give_back(overloaded=True)
    assert held.cap == 81


def test_one_slow_answer_in_three_does_not_move_it():
    held = grown(64)
    for nth in range(20 * 64):
        take_all(held)
        held.give_back(50.0 if nth % 3 == 0 else 1.0)
        assert held.cap == 64


def grown(cap: int) -> AdaptiveLimit:
    """One that has grown to its upper bound on a baseline of 1."""
    held = limit(max_limit=cap)
    while held.cap < cap:
        take_all(held)
        while held.inflight:
            held.give_back(1.0)
    while held.inflight or held._paces:  # to the start of a round
        held.try_take()
        held.give_back(1.0)
    return held


def take_all(held: AdaptiveLimit) -> None:
    while held.try_take():
        pass


# Bounds


class AnyHistory(RuleBasedStateMachine):
    """Whatever is taken, given back and heard: the limit stays in its bounds, and so does what is in flight."""

    @initialize(min_limit=st.integers(1, 8), more=st.integers(0, 60), tolerance=st.floats(1.01, 10.0))
    def begin(self, min_limit, more, tolerance):
        self.limit = AdaptiveLimit(min_limit=min_limit, max_limit=min_limit + more, tolerance=tolerance)
        self.held = 0
        self.refused = 0

    @rule(times=st.integers(1, 80))
    def take(self, times):
        for _ in range(times):
            took = self.limit.try_take()
            assert took == (self.held < self.limit.cap)
            self.held += took
            self.refused += not took

    @precondition(lambda self: self.held)
    @rule(
        times=st.integers(1, 80),
        pace=st.none() | st.floats(1e-6, 1e6) | st.sampled_from([0.02, 0.05]),
        overloaded=st.booleans(),
    )
    def give_back(self, times, pace, overloaded):
        for _ in range(min(times, self.held)):
            self.limit.give_back(pace, overloaded=overloaded)
            self.held -= 1

    @invariant()
    def within_bounds(self):
        held = self.limit
        assert held.min_limit <= held.cap <= held.max_limit
        assert 0 <= held.inflight == self.held <= held.max_limit
        assert held.refused_total == self.refused
        assert len(held._paces) <= 256


TestAnyHistory = AnyHistory.TestCase


def test_bounds_that_bound_nothing_are_refused():
    for min_limit, max_limit in ((0, 5), (6, 5)):
        with pytest.raises(ValueError, match="at least 1 and at most 5"):
            limit(min_limit, max_limit)
    for tolerance in (1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="above 1 and finite"):
            limit(tolerance=tolerance)


def test_a_place_given_back_twice_or_with_an_impossible_pace_is_a_bug_in_the_caller():
    held = limit()
    with pytest.raises(RuntimeError, match="twice"):
        held.give_back()
    held.try_take()
    for pace in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="above 0 and finite"):
            held.give_back(pace)
    assert held.inflight == 1


def test_repr_tells_the_state():
    held = limit()
    assert repr(held) == "<AdaptiveLimit 0/4 in 4..200, baseline inf>"
    for _ in range(16):
        held.try_take()
        held.give_back(0.02)
    assert repr(held) == "<AdaptiveLimit 0/4 in 4..200, baseline 0.02>"
