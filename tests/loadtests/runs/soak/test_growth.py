"""The slope of what is held: least squares, medians of rounds, and what counts as growing."""

from __future__ import annotations

from random import Random

import pytest

from loadtests.report.result import markdown
from loadtests.runs.integrity.questions import asks, plan_of
from loadtests.runs.judged import has_held
from loadtests.runs.soak.__main__ import MAX_WARMUP_S, Soak, result
from loadtests.runs.soak.growth import MAX_A_MINUTE, Sample, medians, per_minute
from loadtests.runs.soak.load import ROUND_S, Few, Outcomes


def test_the_slope_of_a_line_is_its_rise_in_a_minute() -> None:
    assert per_minute([(second, 5 + second * 2 / 60) for second in range(300)]) == pytest.approx(2)
    assert per_minute([(second, 7.0) for second in range(300)]) == 0


def test_noise_about_a_line_changes_little() -> None:
    chance = Random(1)
    points = [(second, second / 60 + chance.gauss(0, 3)) for second in range(3600)]
    assert per_minute(points) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("points", [[], [(1.0, 5.0)], [(1.0, 5.0), (1.0, 9.0)]])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    assert per_minute(points) == 0


def test_a_burst_in_every_round_leaves_no_trace_in_the_medians_and_a_half_round_does_not_count() -> None:
    points = [(float(second), 500.0 if second % 30 >= 25 else 20.0) for second in range(30 * 6 + 27)]
    found = medians(points, 30)
    assert found == [(30 * number + 15, 20.0) for number in range(6)]


def soaked(grows: dict[str, float], minutes: float = 10.0) -> Soak:
    """A process whose holdings grow by so much a minute."""
    begins = {"memory_mb": 50.0, "descriptors": 20.0, "threads": 2.0, "tasks": 30.0}
    soak = Soak(minutes)
    soak.samples["router"] = [
        Sample(float(second), **{name: first + grows.get(name, 0) * second / 60 for name, first in begins.items()})
        for second in range(int(minutes * 60) + 1)
    ]
    return soak


def held(soak: Soak) -> bool:
    return has_held(result(soak))


def test_what_stays_as_it_is_holds() -> None:
    assert held(soaked({}))
    assert held(soaked({"memory_mb": 0.9}))
    assert not held(Soak(10.0)), "nothing was looked at"


@pytest.mark.parametrize(("kind", "most"), MAX_A_MINUTE.items())
def test_whatever_grows_beyond_its_bound_is_told(kind: str, most: float) -> None:
    soak = soaked({kind: 1.1 * most})
    assert not held(soak)
    name = kind.removesuffix("_mb")
    assert [figure.name for figure in soak.growth()["router"] if figure.held is False] == [name]
    page = markdown(result(soak), command="a test", machine="a machine")
    assert page.count("**missed**") == 1
    assert "Not held: 1 of 4 figures grow beyond their limit" in page


def test_a_store_may_open_a_few_more_files_and_no_more_than_that() -> None:
    samples = soaked({"descriptors": 9.0}).samples["router"]
    soak = Soak(10, samples={"PostgreSQL": samples})
    assert held(soak)
    soak.samples["router"] = samples
    assert not held(soak)


def test_what_grew_during_the_warm_up_alone_is_flat() -> None:
    soak = soaked({})
    soak.samples["router"] = [
        Sample(one.at_s, min(one.at_s, soak.warmup_s), 20, 2, 30) for one in soak.samples["router"]
    ]
    assert held(soak)
    assert Soak(10).warmup_s == 180
    assert Soak(600).warmup_s == MAX_WARMUP_S


def test_a_wrong_answer_or_a_place_that_is_kept_does_not_hold_however_flat() -> None:
    kept, wrong = soaked({}), soaked({})
    kept.left = 1
    wrong.outcomes = Outcomes()
    wrong.outcomes.verdicts["foreign"] = 1
    assert not held(kept)
    assert not held(wrong)


def test_a_short_soak_says_that_it_can_tell_nothing_of_growth() -> None:
    short = soaked({"memory_mb": 50.0}, minutes=2)
    assert held(short)
    assert "too short to judge growth" in str(result(short).blocks[0])
    assert "too short to judge growth" not in str(result(soaked({})).blocks[0])


def test_rounds_are_alike_and_the_questions_few() -> None:
    few = Few("http://127.0.0.1:1")
    ask = next(asks(plan_of(ROUND_S, 10, 1000, seed=1), 1))
    assert few.bytes_of(ask, 3) == few.bytes_of(ask, 503)
    assert few.bytes_of(ask, 3) != few.bytes_of(ask, 4)
