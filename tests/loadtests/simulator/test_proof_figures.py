"""How the proof reads its figures: the oracle, the time to recover, who is judged, and that a miss is told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.simulator.proof import page
from loadtests.simulator.proof.cases import CASES, CHOICES, LEARNED, MIXES, Case
from loadtests.simulator.proof.line import PERCENT, Line, Outcome, Row, outcome
from loadtests.simulator.proof.observe import STEP_S, Cohorts, changes_between
from loadtests.simulator.proof.oracle import Asked, best_work
from loadtests.simulator.proof.rows import ROWS
from loadtests.simulator.proof.rows.recovery import recovered_after


def asked(arrived_at: float, deadline_s: float, cost: float, *, least_s: float = 0.0, counts: bool = True) -> Asked:
    return Asked(arrived_at, arrived_at + deadline_s, cost, least_s, counts)


# ---- the oracle


def test_the_oracle_serves_everything_below_capacity() -> None:
    assert best_work([asked(second, 1.0, 50.0) for second in range(10)], 100.0) == pytest.approx(500.0)


def test_the_oracle_serves_capacity_times_time_under_overload() -> None:
    offered = [asked(0.01 * number, 1.0, 10.0) for number in range(1000)]  # 1000/s for 10 s, and 1 s to finish
    assert best_work(offered, 100.0) == pytest.approx(100.0 * 11.0, rel=0.01)


def test_the_oracle_leaves_out_what_no_worker_could_do_in_time() -> None:
    assert best_work([asked(0.0, 1.0, 50.0, least_s=1.1)], 100.0) == 0.0


def test_the_oracle_counts_a_part_that_was_done_by_the_deadline() -> None:
    assert best_work([asked(0.0, 0.5, 100.0)], 100.0) == pytest.approx(50.0)


def test_what_does_not_count_still_takes_its_time() -> None:
    offered = [asked(0.0, 1.0, 100.0, counts=False), asked(0.0, 1.5, 100.0)]
    assert best_work(offered, 100.0) == pytest.approx(50.0)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5), st.floats(0.1, 100)), max_size=30),
    st.floats(1, 100),
)
def test_the_oracle_never_has_more_than_was_asked_or_than_fits_the_time(
    offered: list[tuple[float, float, float]], cost_per_s: float
) -> None:
    work = best_work([asked(*each) for each in offered], cost_per_s)
    until = max((at + deadline_s for at, deadline_s, _ in offered), default=0.0)
    assert 0.0 <= work <= min(sum(cost for *_, cost in offered), until * cost_per_s) * (1 + 1e-9) + 1e-6


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5), st.floats(0.1, 100)), max_size=20),
    st.tuples(st.floats(0, 10), st.floats(0.01, 5), st.floats(0.1, 100)),
    st.floats(1, 100),
)
def test_one_more_request_never_lowers_what_the_oracle_has(
    offered: list[tuple[float, float, float]], more: tuple[float, float, float], cost_per_s: float
) -> None:
    without = best_work([asked(*each) for each in offered], cost_per_s)
    assert best_work([asked(*each) for each in [*offered, more]], cost_per_s) >= without - 1e-6


# ---- recovery


def cohorts(on_time: Sequence[float]) -> Cohorts:
    """Ten arrivals in each tenth of a second, of which so many are on time."""
    sums = [0.0, *accumulate(on_time)]
    return Cohorts([10.0 * place for place in range(len(sums))], sums, sums, sums)


def test_recovery_is_when_the_on_time_rate_is_back_and_stays() -> None:
    tenths = round(1 / STEP_S)
    good, bad = [10.0] * tenths, [0.0] * tenths
    run = cohorts(good * 10 + bad * 4 + good * 20)
    assert recovered_after(run, (0.0, 10.0), 10.0, 0.9, 1.0) == pytest.approx(4.0, abs=0.11)


def test_a_relapse_is_no_recovery() -> None:
    tenths = round(1 / STEP_S)
    good, bad = [10.0] * tenths, [0.0] * tenths
    run = cohorts(good * 10 + bad * 2 + good * 3 + bad * 2 + good * 20)
    assert recovered_after(run, (0.0, 10.0), 10.0, 0.9, 1.0) == pytest.approx(7.0, abs=0.11)


def test_who_never_recovers_is_told_the_rest_of_the_run() -> None:
    tenths = round(1 / STEP_S)
    run = cohorts([10.0] * tenths * 10 + [0.0] * tenths * 20)
    assert recovered_after(run, (0.0, 10.0), 10.0, 0.9, 1.0) == pytest.approx(16.0, abs=0.2)


def test_level_changes_are_counted_between_two_times() -> None:
    levels = [(21.0, 1), (24.0, 3), (90.0, 4)]
    assert changes_between(levels, 0.0, 120.0) == 4
    assert changes_between(levels, 22.0, 80.0) == 2
    assert changes_between(levels, 30.0, 80.0) == 0


# ---- judging and telling


def line(target: float | None = 0.05, *, at_least: bool = False) -> Line:
    return Line("dropped", ("burst",), lambda look: None, PERCENT, target, at_least)


def test_the_worst_seed_decides() -> None:
    assert Outcome(line(), {"weir": [0.01, 0.02, 0.049]}).held is True
    assert Outcome(line(), {"weir": [0.01, 0.02, 0.051]}).held is False
    assert Outcome(line(0.95, at_least=True), {"weir": [0.99, 0.94]}).held is False


def test_what_could_not_be_measured_holds_nothing() -> None:
    assert Outcome(line(), {}).held is False
    assert Outcome(line(None), {}).held is None


def test_a_policy_that_was_not_run_has_no_figure() -> None:
    assert outcome(line(), {}, ["fifo"], [1, 2]).values == {}


def test_a_miss_is_printed_as_a_miss() -> None:
    row = Row(2, "What is admitted is served", "Shares.", (line(),))
    text = page.markdown({row: [Outcome(line(), {"weir": [0.01, 0.08], "fifo": [0.5, 0.6]})]}, "make it", "here", 2)
    assert "0 of 1 targets held" in text
    assert "| dropped | 4.50 % (8.00 %) | ≤ 5.00 % | **missed** | 55.00 % (60.00 %) |" in text


# ---- the table of rows


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_case_can_be_run(case: Case) -> None:
    scenario = case.at(1)
    assert scenario.warm_up_s == scenario.cool_down_s == 3.0
    assert set(case.policies) <= set(CHOICES)


def test_every_line_reads_cases_that_its_judged_policy_runs() -> None:
    for row in ROWS:
        for each in row.lines:
            for name in each.cases:
                assert each.judged in CASES[name].policies, (row.number, each.name)


def test_no_two_lines_of_a_row_have_the_same_name() -> None:
    for row in ROWS:
        names = [each.name for each in row.lines]
        assert len(names) == len(set(names)), row.number


def test_the_mixes_are_cases() -> None:
    assert {*MIXES, *LEARNED} <= set(CASES)
