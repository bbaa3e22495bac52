"""The slope of what is held: least squares, medians of rounds, and what counts as growing."""

from __future__ import annotations

from random import Random

import pytest

from loadtests.runs.integrity.questions import asks, plan_of
from loadtests.runs.soak import report
from loadtests.runs.soak.judging import KINDS, medians, trends
from loadtests.runs.soak.load import ROUND_S, Few, Heard
from loadtests.runs.soak.run import MOST_WARMUP_S, Result, warmup_s
from loadtests.runs.soak.sampling import Sample
from loadtests.runs.soak.slope import per_minute

MIB = 1024 * 1024


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


def soaked(grows: dict[str, float], minutes: float = 10.0) -> Result:
    """A process whose holdings grow by so much a minute."""
    result = Result(minutes, warmup_s(minutes))
    result.samples["router"] = [
        Sample(
            float(second),
            50 * MIB + grows.get("memory, MB", 0) * MIB * second / 60,
            20 + grows.get("descriptors", 0) * second / 60,
            2 + grows.get("threads", 0) * second / 60,
            30 + grows.get("tasks", 0) * second / 60,
        )
        for second in range(int(minutes * 60) + 1)
    ]
    return result


def test_what_stays_as_it_is_holds() -> None:
    assert soaked({}).held
    assert soaked({"memory, MB": 0.9}).held


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_whatever_grows_beyond_its_bound_is_told(kind: str) -> None:
    most = next(one.most_per_minute for one in KINDS if one.name == kind)
    result = soaked({kind: 1.1 * most})
    assert not result.held
    assert [trend.kind.name for trend in result.trends["router"] if not trend.flat] == [kind]
    assert "**grows**" in report.page(result, command="a test", machine="a machine")


def test_a_store_may_open_a_few_more_files_and_no_more_than_that() -> None:
    samples = soaked({"descriptors": 9.0}).samples["router"]
    result = Result(10, warmup_s(10), samples={"PostgreSQL": samples})
    assert result.held
    result.samples["router"] = samples
    assert not result.held


def test_what_grew_during_the_warm_up_alone_is_flat() -> None:
    result = soaked({})
    result.samples["router"] = [
        Sample(one.at_s, min(one.at_s, result.warmup_s) * MIB, 20, 2, 30) for one in result.samples["router"]
    ]
    assert result.held
    assert warmup_s(10) == 180
    assert warmup_s(600) == MOST_WARMUP_S


def test_a_wrong_answer_or_a_place_that_is_kept_does_not_hold_however_flat() -> None:
    result = soaked({})
    result.left = 1
    assert not result.held
    wrong = soaked({})
    wrong.heard = Heard()
    wrong.heard.verdicts["foreign"] = 1
    assert not wrong.held


def test_a_short_soak_says_that_it_can_tell_nothing_of_growth() -> None:
    short = soaked({"memory, MB": 50.0}, minutes=2)
    assert short.held
    assert "too short to tell" in report.verdict(short)
    assert "too short to tell" not in report.verdict(soaked({}))


def test_rounds_are_alike_and_the_questions_few() -> None:
    few = Few("http://127.0.0.1:1")
    ask = next(asks(plan_of(ROUND_S, 10, 1000, seed=1), 1))
    assert few.bytes_of(ask, 3) == few.bytes_of(ask, 503)
    assert few.bytes_of(ask, 3) != few.bytes_of(ask, 4)
    assert trends([], 0, ROUND_S) == []
