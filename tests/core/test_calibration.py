"""How far predicted waits are to be believed: what is published is covered, what admission uses is clamped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi, sin
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.calibration import ENOUGH, PUBLISHED, Coverage, WaitCalibration

SAMPLES = 6000
errors = st.lists(st.floats(-5, 20), max_size=120)


def independent(random: Random) -> Iterator[float]:
    while True:
        yield random.gauss(0.0, 0.3)


def drifting(random: Random) -> Iterator[float]:
    """Away, and back: what was learned is always a little old."""
    drift_s = 0.0
    while True:
        for step_s in [0.001] * 1000 + [-0.001] * 1000:
            drift_s += step_s
            yield drift_s + random.gauss(0.0, 0.1)


def waves(random: Random) -> Iterator[float]:
    """A queue that builds up and drains, some hundreds of starts each time: the window sees one half at a time."""
    at = 0
    while True:
        at += 1
        yield max(0.0, sin(2 * pi * at / 400)) + random.gauss(0.0, 0.05)


def heavy_tails(random: Random) -> Iterator[float]:
    while True:
        yield random.paretovariate(1.5) - 2.0


def coverage_of(kind: Callable[[Random], Iterator[float]], calibration: WaitCalibration) -> Coverage:
    """Of predictions of 100 s, which nothing clamps."""
    stream = kind(Random(5))
    for _ in range(SAMPLES):
        calibration.learn(100.0, 100.0 + next(stream))
    return calibration.coverage


@pytest.mark.parametrize("kind", [independent, drifting, waves, heavy_tails])
@pytest.mark.parametrize("of_a_class", [True, False])
def test_of_the_waits_predicted_at_a_quantile_that_share_is_shorter(
    kind: Callable[[Random], Iterator[float]], of_a_class: bool
) -> None:
    coverage = coverage_of(kind, WaitCalibration(None if of_a_class else WaitCalibration()))
    assert coverage.total >= SAMPLES - ENOUGH
    for q in PUBLISHED:
        share = coverage.share(q)
        assert share is not None
        assert abs(share - q) < 0.02, f"q{q}: {share}"


def test_errors_that_grow_all_the_time_are_followed() -> None:
    calibration = WaitCalibration()
    for at in range(2000):
        calibration.learn(100.0, 100.0 + at)  # each is larger than any before
    share = calibration.coverage.share(0.95)
    assert share is not None
    assert share > 0.9


def test_errors_that_double_all_the_time_are_more_than_it_can_follow() -> None:
    calibration = WaitCalibration()
    for at in range(400):
        calibration.learn(100.0, 100.0 + 2.0**at)
    share = calibration.coverage.share(0.95)
    assert share is not None
    assert share < 0.5  # the limit of the method


def test_before_anything_is_known_the_mean_must_do() -> None:
    calibration = WaitCalibration(WaitCalibration())
    assert calibration.waits_s(2.0) == [2.0, 2.0, 2.0]
    assert calibration.cautious_s(2.0, 0.1) == 2.0
    assert calibration.coverage.share(0.95) is None


def test_until_a_tenant_has_shown_enough_its_class_answers_for_it() -> None:
    class_stats = WaitCalibration()
    tenant, neighbour = WaitCalibration(class_stats), WaitCalibration(class_stats)
    for _ in range(ENOUGH):
        neighbour.learn(1.0, 1.5)
    assert tenant.answering is class_stats
    assert tenant.cautious_s(1.0, 1.0) == pytest.approx(1.5)
    for _ in range(ENOUGH):
        tenant.learn(1.0, 1.1)
    assert tenant.answering is tenant
    assert tenant.cautious_s(1.0, 1.0) == pytest.approx(1.1)
    assert neighbour.cautious_s(1.0, 1.0) == pytest.approx(1.5)


def test_luck_does_not_make_it_brave() -> None:
    calibration = WaitCalibration()
    for _ in range(200):
        calibration.learn(5.0, 0.1)
    assert calibration.cautious_s(5.0, 0.1) == 5.0
    assert calibration.waits_s(5.0) == pytest.approx([0.1, 0.1, 0.1])  # but what is published is what was seen


def test_one_bad_second_cannot_frighten_it_into_admitting_nothing() -> None:
    calibration = WaitCalibration()
    for _ in range(200):
        calibration.learn(0.1, 500.0)
    assert calibration.cautious_s(0.0, 0.2) == pytest.approx(0.2)
    assert calibration.cautious_s(0.5, 0.2) == pytest.approx(0.5 + 0.2 + 1.0)
    assert calibration.waits_s(0.5)[-1] == pytest.approx(500.4)


def test_no_published_wait_is_below_zero() -> None:
    calibration = WaitCalibration()
    for _ in range(50):
        calibration.learn(5.0, 0.0)
    assert calibration.waits_s(1.0) == [0.0, 0.0, 0.0]


def test_a_burst_is_forgotten_by_a_tenant_after_its_window() -> None:
    tenant = WaitCalibration(WaitCalibration())
    for _ in range(50):
        tenant.learn(1.0, 9.0)
    for _ in range(400):
        tenant.learn(1.0, 1.0)
    assert tenant.waits_s(1.0)[-1] == pytest.approx(1.0)


@given(errors, errors)
def test_a_higher_quantile_is_never_a_shorter_wait(first: list[float], then: list[float]) -> None:
    class_stats = WaitCalibration()
    tenant = WaitCalibration(class_stats)
    for error_s in first + then + first:
        tenant.learn(100.0, 100.0 + error_s)
        assert tenant.waits_s(100.0) == sorted(tenant.waits_s(100.0))
        assert class_stats.waits_s(100.0) == sorted(class_stats.waits_s(100.0))


def test_a_higher_quantile_is_never_a_shorter_wait_though_levels_move_apart() -> None:
    random, calibration = Random(3), WaitCalibration()
    for at in range(5000):
        actual_s = 100.0 + (random.random() if at % 40 < 30 else 10 * random.random() * (at % 3))
        calibration.learn(100.0, actual_s)
        assert calibration.waits_s(100.0) == sorted(calibration.waits_s(100.0))


@given(errors, st.floats(0, 50), st.floats(0, 5))
def test_caution_lies_between_the_mean_and_three_means_and_a_service(
    seen: list[float], predicted_s: float, service_s: float
) -> None:
    calibration = WaitCalibration()
    for error_s in seen:
        calibration.learn(10.0, max(0.0, 10.0 + error_s))
    cautious_s = calibration.cautious_s(predicted_s, service_s)
    assert predicted_s <= cautious_s <= 3 * predicted_s + service_s + 1e-9


def test_it_says_what_it_knows() -> None:
    calibration = WaitCalibration()
    for _ in range(40):
        calibration.learn(1.0, 1.25)
    assert repr(calibration) == ("<WaitCalibration q95 error 250 ms, covered q50 100.0%, q90 100.0%, q95 100.0% of 20>")
