"""The ladder: it rises soon, falls slowly, and does not swing; and the clamp that fits an answer into its slack."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.ladder import LADDER, Controller, LadderLevel, fit_clamp

TOP = len(LADDER) - 1
MINUTE_S = 60.0


def prices(prompt: int = 50, context: int = 600, answer: int = 150) -> list[float]:
    """What one request costs at each level, over its cost at level 0."""
    costs = [prompt + level.context_tokens(context) + 2 * level.answer_tokens(answer) for level in LADDER]
    return [cost / costs[0] for cost in costs]


ASK = prices()
MIXES = st.builds(prices, st.integers(20, 500), st.integers(0, 2000), st.integers(20, 800))


@dataclass
class Drive:
    """A controller under a load, told the truth at a fixed beat. `load` is the work at level 0 over capacity."""

    price: list[float] = field(default_factory=lambda: ASK)
    control: Controller = field(default_factory=lambda: Controller(LADDER))
    now: float = 0.0
    beat_s: float = 0.1
    changes: list[tuple[float, int]] = field(default_factory=list)

    def see(
        self, load: float, wait_s: float | None = 0.1, slack_s: float | None = 1.0, rate: float | None = 50.0
    ) -> int:
        before = self.control.level
        work = [load * (rate or 1.0) * price for price in self.price]
        level = self.control.observe(
            self.now, q95_wait_s=wait_s, median_slack_s=slack_s, offered_work_per_s=work, rate=rate
        )
        if level != before:
            self.changes.append((self.now, level))
        return level

    def hold(self, load: float, seconds: float, **seen: float | None) -> int:
        for _ in range(round(seconds / self.beat_s)):
            self.see(load, **seen)
            self.now += self.beat_s
        return self.control.level

    def most_changes_in_a_minute(self) -> int:
        times = [at for at, _ in self.changes]
        return max((sum(at <= other < at + MINUTE_S for other in times) for at in times), default=0)


def worth(*worths: float) -> list[LadderLevel]:
    """A ladder of which only the worth of its levels is known."""
    return [LadderLevel(1, 1, 1, 1, 1, worth=value) for value in worths]


def best(load: float, price: list[float]) -> int:
    """The level with the largest worth of all that are served, in the plainest words."""
    values = [level.worth / max(1.0, load * share) for level, share in zip(LADDER, price, strict=True)]
    return values.index(max(values))


# What it is for


def test_under_an_overload_of_three_it_takes_the_level_that_pays_most_within_a_second_and_a_half():
    drive = Drive()
    drive.hold(0.5, 7.3)
    assert drive.hold(3.0, 1.5) == best(3.0, ASK) == 3
    drive.hold(3.0, 300.0)
    assert len(drive.changes) == 1


@settings(max_examples=100)
@given(MIXES, st.floats(0.0, 0.5), st.floats(0.02, 0.4))
def test_an_overload_of_three_is_answered_within_a_second_and_a_half_whatever_the_mix(price, phase_s, beat_s):
    drive = Drive(price, beat_s=beat_s)
    drive.hold(0.5, 5.0)
    drive.now += phase_s
    began = drive.now
    drive.hold(3.0, 2.0)
    assert [at <= began + 1.5 for at, _ in drive.changes] == [True] * (drive.control.level > 0)


@settings(max_examples=100)
@given(MIXES, st.floats(0.0, 50.0))
def test_under_a_steady_load_it_yields_what_the_best_level_would(price, load):
    drive = Drive(price, beat_s=0.5)
    level = drive.hold(load, 10.0, wait_s=0.0)
    value, most = (LADDER[at].worth / max(1.0, load * price[at]) for at in (level, best(load, price)))
    assert value >= 0.96 * most  # each step deeper has to be better by a hundredth


@settings(max_examples=100)
@given(MIXES, st.floats(1.2, 50.0), st.floats(1.0, 90.0), st.floats(0.0, 0.79), st.floats(0.0, 0.5))
def test_full_quality_is_back_within_fifteen_seconds_of_a_load_below_four_fifths(price, peak, peak_s, load, phase_s):
    drive = Drive(price)
    drive.hold(peak, peak_s)
    drive.now += phase_s
    drive.hold(load, 15.0)
    assert drive.control.level == 0


@settings(max_examples=60)
@given(st.floats(0.0, 0.79), st.floats(0, 10) | st.none(), st.floats(0, 10) | st.none())
def test_a_long_wait_does_not_hold_quality_down_once_the_work_fits(load, wait_s, slack_s):
    drive = Drive()
    drive.hold(20.0, 5.0)
    assert drive.hold(load, 15.0, wait_s=wait_s, slack_s=slack_s) == 0
    assert drive.hold(load, 60.0, wait_s=wait_s, slack_s=slack_s) == 0


def test_a_long_wait_raises_the_level_when_the_work_alone_would_not():
    assert Drive().hold(0.95, 5.0, wait_s=0.49) == 0
    drive = Drive()
    assert drive.hold(0.95, 5.0, wait_s=0.51) == best(0.95 * 1.25, ASK) == 1


def test_one_window_of_overload_changes_nothing():
    drive = Drive(beat_s=0.5)
    for _ in range(10):
        drive.hold(0.7, 1.0)
        drive.hold(9.0, 0.5)
    assert drive.changes == []


def test_it_goes_back_level_by_level_with_a_dwell_at_each():
    drive = Drive()
    drive.hold(20.0, 5.0)
    began = drive.now
    drive.hold(0.1, 20.0)
    assert [level for _, level in drive.changes] == [4, 3, 2, 1, 0]
    assert [at - began for at, _ in drive.changes[1:]] == pytest.approx([5, 8, 11, 14], abs=0.6)


def test_while_degraded_it_waits_for_most_of_five_seconds_to_agree_before_it_cuts_more():
    drive = Drive()
    assert drive.hold(3.0, 10.0) == 3
    for _ in range(5):
        assert drive.hold(9.0, 2.4) == 3
        assert drive.hold(3.0, 3.1) == 3
    assert drive.hold(9.0, 3.6) == 4


# Stability


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=7),
    st.floats(0.0, 30.0),
    st.lists(st.tuples(st.floats(0.0, 3.0) | st.none(), st.floats(-1.0, 3.0) | st.none()), min_size=1, max_size=8),
)
def test_while_the_work_is_constant_the_level_changes_at_most_twice_whatever_the_table_and_the_waits(
    table, load, waits
):
    worths = sorted((value for _, value in table), reverse=True)
    drive = Drive([1.0, *(price for price, _ in table)], Controller(worth(1.0, *worths)), beat_s=0.5)
    for n in range(600):
        wait_s, slack_s = waits[n // 7 % len(waits)]
        drive.hold(load, 0.5, wait_s=wait_s, slack_s=slack_s)
    assert len(drive.changes) <= 2
    assert [level for _, level in drive.changes] == sorted(level for _, level in drive.changes)


@settings(max_examples=40)
@given(MIXES, st.floats(1.25, 30.0), st.floats(0.0, 0.9), st.integers(0, 2**32))
def test_a_steady_overload_that_fluctuates_makes_at_most_two_changes_a_minute(price, load, wait_s, seed):
    """By a seventh, up or down, from one window to the next: what a mean over some fifty requests does."""
    chance = Random(seed)
    drive = Drive(price, beat_s=0.5)
    for _ in range(600):
        drive.hold(load * chance.uniform(0.86, 1.14), 0.5, wait_s=wait_s * chance.uniform(0.5, 1.5))
    assert drive.most_changes_in_a_minute() <= 2


@settings(max_examples=60)
@given(st.lists(st.floats(0.9, 4.0), min_size=150, max_size=250), st.floats(0.0, 2.0))
def test_not_even_an_adversary_gets_a_third_change_in_a_minute_unless_a_third_would_be_refused(loads, wait_s):
    """Loads at which level 0 is never the best, and that never reach 1.5 once priced at level 1."""
    drive = Drive([1.0, 0.36, 0.25, 0.18, 0.1], beat_s=0.5)
    for load in loads:
        drive.hold(load, 0.5, wait_s=wait_s)
    assert drive.most_changes_in_a_minute() <= 2


def test_a_step_back_is_paid_for_even_where_the_next_level_alone_would_not_beat_full_price():
    drive = Drive([1.0, 0.99, 0.5, 0.2, 0.2], beat_s=0.5)
    for _ in range(20):
        drive.hold(2.9, 6.0)
        drive.hold(1.2, 6.0)
    assert {level for _, level in drive.changes} == {2, 3}
    assert drive.most_changes_in_a_minute() == 2


def test_after_a_change_the_windows_before_it_have_no_say():
    drive = Drive(beat_s=0.5)
    drive.hold(20.0, 5.0)
    while drive.control.level == 4:
        drive.hold(0.1, 0.5)
    drive.hold(0.1, 2.5)
    assert drive.hold(20.0, 1.0) == 3  # its dwell is over, and two windows of eleven want more
    assert drive.hold(20.0, 3.0) == 4


def test_a_third_change_in_a_minute_is_made_when_a_third_would_be_refused_without_it():
    drive = Drive()
    assert [drive.hold(load, 5.0) for load in (1.2, 1.6, 2.4)] == [1, 2, 2]
    assert best(2.4, ASK) == 3
    assert 2.4 * ASK[2] < 1.5 < 3.0 * ASK[2]
    assert drive.hold(3.0, 5.0) == 3


def test_a_step_back_that_failed_waits_for_its_budget():
    drive = Drive()
    assert drive.hold(2.0, 5.0) == 2
    assert drive.hold(1.02, 5.5) == 1
    assert drive.hold(2.0, 5.0) == 1  # two changes are spent, and 1.5 is not above 1.5
    assert drive.hold(2.1, 5.0) == 2  # but this is
    assert drive.hold(1.02, 40.0) == 2
    assert drive.hold(1.02, 30.0) == 1


def test_going_back_to_full_quality_is_free():
    drive = Drive()
    drive.hold(20.0, 5.0)
    assert drive.hold(0.5, 20.0) == 0
    assert drive.hold(1.3, 1.5) == 1  # at once, though the last minute has seen five changes


# Silence and ignorance


def test_with_nothing_offered_it_falls_and_never_rises_however_long_the_waits_were():
    drive = Drive()
    drive.hold(20.0, 5.0)
    assert drive.hold(0.0, 15.0, wait_s=9.0, rate=None) == 0
    assert drive.hold(0.0, 60.0, wait_s=9.0, slack_s=0.0, rate=None) == 0


@pytest.mark.parametrize("rate", [None, 0.0])
def test_while_the_capacity_is_unknown_the_level_stays(rate: float | None):
    drive = Drive()
    assert drive.hold(5.0, 30.0, rate=rate, wait_s=5.0) == 0
    drive.hold(3.0, 2.0)
    assert drive.hold(0.1, 30.0, rate=rate) == 3


def test_without_slack_any_wait_is_long_and_none_is_not():
    assert Drive().hold(0.95, 5.0, wait_s=0.0, slack_s=0.0) == 0
    assert Drive().hold(0.95, 5.0, wait_s=0.01, slack_s=0.0) == 1
    assert Drive().hold(0.95, 5.0, wait_s=0.01, slack_s=-3.0) == 1
    assert Drive().hold(0.95, 5.0, wait_s=None, slack_s=None) == 0


@settings(max_examples=60)
@given(st.floats(0.0, 60.0))
def test_a_silence_is_worth_the_same_as_the_same_time_without_work(silence_s):
    """But for the last window, which the next caller speaks for."""
    silent, told = Drive(beat_s=0.5), Drive(beat_s=0.5)
    for drive in (silent, told):
        drive.hold(20.0, 5.0)
    windows = int(silence_s / 0.5)
    silent.now += windows * 0.5
    told.hold(0.0, windows * 0.5)
    assert silent.see(20.0) == told.see(20.0)
    assert silent.control.changes == told.control.changes
    assert silent.hold(20.0, 10.0) == told.hold(20.0, 10.0) == TOP


def test_it_never_cuts_what_saves_nothing():
    chat = Drive([1.0, 1.0, 0.75, 0.6, 0.6])
    chat.hold(50.0, 10.0)
    assert chat.changes == [(0.5, 3)]


def test_it_refuses_rather_than_cut_more_than_it_saves():
    mostly_prompt = Drive([1.0, 0.98, 0.95, 0.93, 0.9])
    assert mostly_prompt.hold(50.0, 60.0, wait_s=9.0) == 0


def test_between_the_ends_of_windows_nothing_is_looked_at():
    control = Controller()
    assert control.due(0.0)
    control.observe(0.0, q95_wait_s=0, median_slack_s=1, offered_work_per_s=[9.0] * len(LADDER), rate=1.0)
    assert not control.due(0.49)
    assert control.observe(0.49, q95_wait_s=0, median_slack_s=0, offered_work_per_s=(), rate=None) == 0
    assert control.due(0.5)
    with pytest.raises(ValueError, match="priced at 0 levels, the ladder has 5"):
        control.observe(0.5, q95_wait_s=0, median_slack_s=0, offered_work_per_s=(), rate=None)


def test_a_ladder_has_a_level_and_a_ladder_of_one_never_moves():
    with pytest.raises(ValueError, match="at least one level"):
        Controller([])
    assert Drive([1.0], Controller(worth(1.0))).hold(50.0, 20.0, wait_s=9.0) == 0


def test_a_level_that_is_worth_more_than_the_one_before_is_refused():
    with pytest.raises(ValueError, match="worth more than the one before"):
        Controller(worth(1.0, 0.5, 0.6))


def test_repr_tells_the_state():
    drive = Drive()
    drive.hold(3.0, 2.0)
    assert repr(drive.control) == "<Controller level 3 of 4, 1 changes, calm for 0/0/0/0/4 windows>"


class AnyHistory(RuleBasedStateMachine):
    """Whatever is seen, whenever: the rules of the ladder hold."""

    def __init__(self) -> None:
        super().__init__()
        self.drive = Drive()

    @rule(
        load=st.floats(0.0, 20.0),
        wait_s=st.floats(0.0, 5.0) | st.none(),
        slack_s=st.floats(-1.0, 5.0) | st.none(),
        rate=st.sampled_from([50.0, 1.0, None, 0.0]),
        after_s=st.sampled_from([0.5, 0.1, 0.0, 1.0, 9.0]),
        times=st.integers(1, 12),
    )
    def see(self, load, wait_s, slack_s, rate, after_s, times):
        control = self.drive.control
        for _ in range(times):
            before, changes = control.level, control.changes
            self.drive.now += after_s
            after = self.drive.see(load, wait_s, slack_s, rate)
            assert before - after <= control.changes - changes  # down one at a time, up as far as need be
            assert control.changes > changes or after == before

    @invariant()
    def the_level_is_on_the_ladder(self):
        assert 0 <= self.drive.control.level <= self.drive.control.top

    @invariant()
    def each_change_has_had_its_dwell(self):
        assert self.drive.control.changes <= 1 + (self.drive.now + 0.5) / 3


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=30)


# Levels


def test_each_level_of_the_table_gives_no_more_than_the_one_before():
    assert LADDER[0] == LadderLevel(1, 1, 1, 1, 1)
    for better, worse in pairwise(LADDER):
        assert worse.worth < better.worth
        assert worse.context_tokens(1000) < better.context_tokens(1000)
        assert worse.answer_tokens(1000) <= better.answer_tokens(1000)
        assert worse.ef_search_share <= better.ef_search_share
        assert worse.retrieval_depth_share < better.retrieval_depth_share
        assert worse.retrieval_budget_share < better.retrieval_budget_share
    assert not LADDER[-1].retrieval


def test_a_level_leaves_at_least_one_token_of_any_answer():
    assert [LADDER[-1].answer_tokens(asked) for asked in (0, 1, 2, 10, 100)] == [0, 1, 1, 3, 30]


def test_a_share_beyond_the_whole_is_refused():
    with pytest.raises(ValueError, match=r"context_share must be between 0 and 1, got 1\.5"):
        LadderLevel(1, 1, 1.5, 1, 1)


# The clamp

SECONDS = st.floats(0.0, 1e4)


@given(st.integers(0, 100_000), st.floats(-10.0, 1e4), SECONDS, SECONDS)
def test_a_clamped_answer_fits_and_one_more_token_would_not(asked, slack_s, prefill_s, s_per_token):
    granted = fit_clamp(asked, slack_s, prefill_s, s_per_token)
    rounding = 1e-9 * max(1.0, abs(slack_s))
    assert 0 <= granted <= asked
    assert granted == 0 or prefill_s + granted * s_per_token <= slack_s + rounding
    assert granted == asked or prefill_s + (granted + 1) * s_per_token >= slack_s - rounding


@pytest.mark.parametrize(
    ("asked", "slack_s", "prefill_s", "s_per_token", "granted"),
    [
        (100, 2.0, 0.5, 0.02, 75),
        (100, 9.0, 0.5, 0.02, 100),
        (100, 0.51, 0.5, 0.02, 0),
        (100, 0.5, 0.5, 0.0, 0),
        (100, 0.6, 0.5, 0.0, 100),
        (100, -1.0, 0.0, 0.02, 0),
        (100, math.inf, 0.0, 0.02, 100),
        (100, math.nan, 0.0, 0.02, 0),
        (100, 1.0, 0.0, math.inf, 0),
        (0, 1.0, 0.0, 0.02, 0),
    ],
)
def test_the_clamp_at_its_edges(asked, slack_s, prefill_s, s_per_token, granted):
    assert fit_clamp(asked, slack_s, prefill_s, s_per_token) == granted
