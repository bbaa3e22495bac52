"""The targets of Weir beside other gateways come from the same run."""

from __future__ import annotations

from loadtests.bench.gateways import WEIR, Seen, figures
from loadtests.report.figure import Figure


def seen(answers: float, chunks: float, p50_ms: float, p99_ms: float) -> Seen:
    return Seen([answers] * 3, [chunks] * 3, [p50_ms] * 3, [p99_ms] * 3)


def by_name(refusals: float = 9000.0, **gateways: Seen) -> dict[str, Figure]:
    names = {name.replace("_", "-"): each for name, each in gateways.items()}
    return {each.name: each for each in figures(names, [refusals])}


def test_answers_are_held_against_the_faster_of_the_two_routers_and_not_against_haproxy() -> None:
    found = by_name(
        weir=seen(5000, 9, 1, 1),
        haproxy=seen(30_000, 99, 0, 0),
        sglang_router=seen(4000, 8, 2, 2),
        vllm_router=seen(6000, 8, 2, 2),
    )
    assert (found["answers"].target, found["answers"].held) == (6000, False)
    assert (found["refusals"].target, found["refusals"].held) == (8000, True)
    assert [found[name].held for name in ("streamed chunks", "added p50", "added p99")] == [True] * 3
    assert found["haproxy: answers"].value == 30_000


def test_without_the_others_there_is_no_target_to_hold() -> None:
    found = by_name(weir=seen(5000, 9, 1, 1), haproxy=seen(30_000, 99, 0, 0))
    assert {found[name].target for name in ("answers", "refusals", "streamed chunks", "added p50")} == {None}


def test_a_figure_is_the_median_of_its_rounds_with_the_least_and_the_most() -> None:
    answers = figures({WEIR: Seen([1.0, 9.0, 2.0], [1.0], [1.0], [1.0])}, [1.0])[0]
    assert (answers.value, answers.note) == (2.0, "1 to 9")
