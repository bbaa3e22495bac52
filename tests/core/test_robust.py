"""What a few arbitrarily bad samples teach, and for how long: the bounds of docs/architecture/mechanisms/estimator.md,
degradation.md and admission.md."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.admissioncheck import Admitted
from services.core.estimator import ENOUGH, OUTLIER, Estimator
from services.core.ladder import LADDER, QUIET_WINDOWS, WINDOW_S, Controller
from services.core.prefill import FADE
from services.core.request import Request, Stage
from services.core.stats import QUIET_SHARE, ClassStats, LadderSizes
from tests.core.house import House

READ_S, TOKEN_S = 0.03, 0.01
PROMPT, ANSWER = 50.0, 20.0
SERVICE_S = READ_S + (ANSWER - 1) * TOKEN_S
WORK = 90.0
HUGE_S = st.floats(1.0, 1e6)
"""From forty ordinary answers to eleven days."""


def answered(estimator: Estimator, now: float, read_s: float = READ_S, token_s: float = TOKEN_S) -> float:
    """One answer, alone in a pool of one slot, from now on; the time of its end."""
    request = Request(1, "a", now, inf, int(PROMPT), int(ANSWER))
    request.stage = Stage.RUNNING
    estimator.start(now, request, 0.0)
    estimator.learn_prefill(read_s, PROMPT)
    estimator.learn_pace(token_s * (ANSWER - 1), ANSWER - 1)
    now += read_s + token_s * (ANSWER - 1)
    estimator.stop(now)
    request.stage = Stage.ENDED
    estimator.learn(now, request, WORK, PROMPT, ANSWER)
    return now


def estimator_after(answers: int) -> tuple[Estimator, float]:
    estimator, now = Estimator(), 0.0
    estimator.resize(0.0, 1)
    for _ in range(answers):
        now = answered(estimator, now)
    return estimator, now


# ---- the estimator


@settings(max_examples=40)
@given(st.integers(ENOUGH, 300), HUGE_S, HUGE_S)
def test_one_answer_that_is_arbitrarily_slow_counts_as_one_of_five_times_the_usual(
    answers: int, read_s: float, token_s: float
) -> None:
    estimator, now = estimator_after(answers)
    rate = estimator.rate
    weight = (1 - FADE**answers) / (1 - FADE)  # of all samples, a new one weighing 1
    answered(estimator, now, read_s, token_s)
    most = 1 + OUTLIER / weight
    assert rate is not None
    assert estimator.rate is not None
    assert estimator.rate >= rate / most
    assert estimator.median_s == pytest.approx(TOKEN_S)
    assert estimator.prefill_s(PROMPT) <= READ_S * most
    for q in (0.85, 0.99):
        assert estimator.prefill_s(PROMPT, q) <= OUTLIER * READ_S * most * 1.05
        assert estimator.token_s(q) <= OUTLIER * TOKEN_S * 1.05


@settings(max_examples=20)
@given(st.integers(8, 20), HUGE_S)
def test_while_one_answer_in_eight_is_arbitrarily_slow_capacity_and_prefill_stay_within_their_bound(
    every: int, read_s: float
) -> None:
    """With a share e of samples that count as OUTLIER times what is expected, the mean m solves m = 1 - e + e * 5 m."""
    estimator, now = estimator_after(ENOUGH)
    for number in range(1, 300):
        now = answered(estimator, now, read_s if number % every == 0 else READ_S)
    share = 1 / every
    bound = (1 - share) / (1 - OUTLIER * share) * 1.05
    assert estimator.prefill_s(PROMPT) <= READ_S * bound
    assert estimator.rate is not None
    assert estimator.rate >= WORK / SERVICE_S / bound


@given(st.integers(1, 100), HUGE_S, st.randoms(use_true_random=False))
def test_while_most_answers_are_as_usual_the_time_per_token_is_as_usual(
    bad: int, token_s: float, random: Random
) -> None:
    estimator = Estimator()
    samples = [TOKEN_S] * (2 * bad) + [token_s] * bad
    random.shuffle(samples)
    for each in [*[TOKEN_S] * ENOUGH, *samples]:
        estimator.learn_pace(each * 10, 10)
    assert estimator.median_s == pytest.approx(TOKEN_S, rel=0.02)


@settings(max_examples=40)
@given(st.integers(0, 200), st.integers(1, 200), st.floats(1.0, 1000.0), st.floats(1.0, 1000.0))
def test_after_any_slow_spell_ten_ordinary_answers_restore_what_is_expected(
    before: int, slow: int, slower_read: float, slower_token: float
) -> None:
    estimator, now = estimator_after(before)
    for _ in range(slow):
        now = answered(estimator, now, slower_read * READ_S, slower_token * TOKEN_S)
    for _ in range(10):
        now = answered(estimator, now)
    assert estimator.median_s <= 1.5 * TOKEN_S * 1.02
    assert estimator.prefill_s(PROMPT) <= 3.5 * READ_S


def test_a_lasting_slowness_is_still_learned() -> None:
    estimator, now = estimator_after(300)
    for _ in range(600):
        now = answered(estimator, now, 20 * READ_S, 20 * TOKEN_S)
    assert estimator.service_s(PROMPT, ANSWER) == pytest.approx(20 * SERVICE_S, rel=0.25)
    assert estimator.rate == pytest.approx(WORK / SERVICE_S / 20, rel=0.4)


# ---- admission


@given(
    st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(1e-6, 1e3)), max_size=60),
    st.floats(0.01, 100.0),
    st.integers(0, 4),
    st.booleans(),
)
def test_whatever_was_learned_a_request_that_finds_a_free_slot_starts_whole(
    learned: list[tuple[float, float]], slack_s: float, level: int, may_clamp: bool
) -> None:
    house = House(slots=2, knows_itself=False)
    for read_s, token_s in learned:
        house.estimator.learn_prefill(read_s, PROMPT)
        house.estimator.learn_pace(token_s, 1.0)
    request = house.request(slack_s=slack_s, max_tokens=int(ANSWER), max_level=4, may_clamp=may_clamp)
    house.put(request)
    house.scheduler.pools["default"].classes["default"].controller.level = level
    request = house.request(slack_s=slack_s, max_tokens=int(ANSWER), max_level=4, may_clamp=may_clamp)
    assert house.put(request) == Admitted(0, 0.0)
    assert request.stage is Stage.RUNNING
    if not may_clamp or house.estimator.median_s * ANSWER + house.estimator.prefill_s(PROMPT) <= slack_s:
        assert request.granted_tokens == ANSWER
    assert request.granted_tokens > 0


@given(st.floats(1.0, 1e4), st.floats(0.5, 100.0))
def test_retrieval_that_runs_before_a_free_slot_is_not_cut_short_by_an_estimate(read_s: float, slack_s: float) -> None:
    house = House(slots=1, knows_itself=False)
    for _ in range(ENOUGH):
        house.estimator.learn_prefill(read_s, PROMPT)
    request = house.request(slack_s=slack_s, ready=False, max_tokens=int(ANSWER))
    assert house.put(request) == Admitted(0, 0.0)
    house.run(house.now + 0.9 * slack_s)
    house.scheduler.counted(house.now, request, int(PROMPT))
    house.scheduler.ready(house.now, request)
    house.start()
    assert request.stage is Stage.RUNNING
    assert request.granted_tokens == ANSWER


# ---- the ladder


@given(
    st.lists(st.tuples(st.floats(0.0, 1e9), st.floats(0.0, 1e6)), min_size=QUIET_WINDOWS, max_size=40),
    st.integers(0, 4),
)
def test_whatever_the_estimates_say_quiet_windows_end_a_degradation_and_begin_none(
    windows: list[tuple[float, float]], level: int
) -> None:
    controller, now = Controller(LADDER), 0.0
    controller.level = level
    for number, (work_per_s, wait_s) in enumerate(windows, 1):
        controller.observe(
            now, q95_wait_s=wait_s, median_slack_s=1.0, offered_work_per_s=[work_per_s] * len(LADDER), rate=1.0,
            quiet=True,
        )  # fmt: skip
        assert controller.level <= level
        assert not controller.level or number < QUIET_WINDOWS
        now += WINDOW_S


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_window_is_quiet_while_at_most_a_quarter_of_its_requests_found_no_slot(offers: int, crowded: int) -> None:
    class_stats = ClassStats(1.0, LadderSizes(LADDER))
    class_stats.offers, class_stats.crowded = offers, crowded
    for _ in range(ENOUGH):
        class_stats.recent_s.add(9.0)
    quiet = class_stats.is_quiet()
    assert quiet == (crowded <= QUIET_SHARE * offers)
    assert class_stats.long_wait_s() == (None if quiet else 9.0)
    assert class_stats.is_quiet(), "the next window begins without them"


def test_a_few_waits_are_no_long_waits() -> None:
    class_stats = ClassStats(1.0, LadderSizes(LADDER))
    for wait_s in [100.0] + [0.1] * 18:
        class_stats.recent_s.add(wait_s)
        assert class_stats.long_wait_s() is None
    class_stats.recent_s.add(0.1)
    assert class_stats.long_wait_s() == 0.1, "one in twenty decides nothing"
