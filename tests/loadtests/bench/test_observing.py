"""The arithmetic of what observation costs. Not the cost."""

from __future__ import annotations

import os

from loadtests.bench.observing import (
    MIN_SHARE,
    Costs,
    Options,
    compared,
    moods_compared,
    page_written,
    result,
    variants,
)
from loadtests.bench.stand import of_tenants
from loadtests.cluster.usage import cpu_s
from loadtests.load.figures import Quantiles
from loadtests.report.figure import Figure
from loadtests.report.result import markdown


def costs(*cpu_us: float) -> Costs:
    return Costs(list(cpu_us), [1e6 / cost for cost in cpu_us])


def test_a_disturbed_round_changes_no_cost() -> None:
    assert costs(100, 101, 102, 103).undisturbed == costs(100, 900, 900, 900).undisturbed == 100
    assert costs(110, 90, 100, 500, 500, 500, 500, 500).undisturbed == 95


def test_what_is_left_of_the_throughput_is_the_cost_of_the_unobserved_over_the_observed() -> None:
    first, everything, no_log = compared(
        {"nothing": costs(100, 120), "everything": costs(105, 105), "all but the log": costs(125, 125)}
    )
    assert (first.value, first.target) == (100, None)
    assert (round(everything.value, 3), everything.target, everything.held) == (0.952, MIN_SHARE, True)
    assert (no_log.value, no_log.target) == (0.8, None), "only the router as it is shipped is judged"


def test_every_mood_is_judged_against_prometheus_gone() -> None:
    cost = {"gone": costs(100), "often": costs(104), "slowly": costs(120)}
    gone, often, slowly = moods_compared(cost, {name: [Quantiles(9, 1.0, 2.0, 3.0)] for name in cost})
    assert (gone.held, often.held, slowly.held) == (None, True, False)


def test_the_first_variant_is_silent_and_the_judged_one_is_the_router_as_it_is_shipped() -> None:
    chosen = variants("http://127.0.0.1:1")
    first, second, *_ = chosen.items()
    assert (first[0], set(first[1].silent)) == ("nothing", {"metrics", "log", "journal"})
    assert (second[0], second[1].silent, second[1].settings) == ("everything", (), {})


def test_requests_are_of_many_tenants() -> None:
    asked = of_tenants(8000)
    assert len({line for request in asked for line in request.split(b"\r\n") if line.startswith(b"x-tenant")}) == 16


def test_processor_time_is_the_kernels_own_count() -> None:
    before = cpu_s(os.getpid())
    sum(range(300_000))
    assert cpu_s(os.getpid()) > before


def test_both_writers_of_the_page_are_timed_on_the_same_one() -> None:
    ours, theirs = page_written()
    assert 0 < ours.value < theirs.value


def test_the_page_says_what_held_and_with_which_command() -> None:
    figures = [Figure("observed: everything", 0.97, "of the throughput", 0.95), Figure("a page", 1.2, "ms")]
    made = result(figures, Options(rounds=2, requests=1000))
    text = markdown(made, command="python -m loadtests.bench observing", machine="here")
    assert "1 of 1 targets held" in text
    assert "| observed: everything | 0.97 of the throughput | ≥ 0.95 of the throughput | held |  |" in text
    assert "`python -m loadtests.bench observing`, on here" in text
