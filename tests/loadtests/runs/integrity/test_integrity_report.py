"""What is told of a run: figures with targets, a page, and all that is known of what was wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from loadtests.faults.evil.staged import STAGES
from loadtests.report.result import markdown
from loadtests.runs.integrity import report
from loadtests.runs.integrity.checker import NEVER, End, Rule
from loadtests.runs.integrity.leavers import LEFT, OTHERWISE
from loadtests.runs.integrity.parts import Done, Sizes
from loadtests.runs.integrity.play import TAIL_REQUESTS
from loadtests.runs.integrity.run import Played

SIZES = Sizes(requests=1000, faults=2, kills=1, nonces=500, leavers=24)


def played(sizes: Sizes = SIZES, *, counts: dict[str, int] | None = None, **values: float) -> Played:
    """A good run, and what is changed of it."""
    faults = Counter({"worker: kill -9": 1, "router: SIGSTOP, SIGCONT": 1})
    kill = Counter({"worker: kill -9": 1})
    changed = Counter(counts or {})
    some = {"tail": TAIL_REQUESTS}
    done = [
        Done(1, "faults", Counter({"asked": 1000, End.RIGHT.value: 900, **some}) + changed, faults, took_s=10),
        Done(2, "kills", Counter({"asked": 400, **some}), kill, still_s=1.5),
        Done(3, "nonces", Counter({"asked": 500, "answers of evil workers": 9, "tricks": 4, **some}), kill),
        Done(
            4, "leavers", Counter({LEFT: 24}), values={"p50": 2, "p99": 9, "most": 11, "open": 0, "memory": 1, **values}
        ),
    ]
    return Played(sizes, done)


def test_a_good_run_says_so_in_a_line() -> None:
    good = played()
    assert good.held
    assert (
        report.verdict(good) == "1,900 requests, 4 faults: 0 lost, 0 answered twice, 0 foreign, 0 wrong, 0 hung. Held."
    )


@pytest.mark.parametrize("what", [*NEVER, *Rule, "places held", "lacks", "errors"])
def test_one_breach_of_any_rule_does_not_hold(what: str) -> None:
    assert not played(counts={str(what): 1}).held


@pytest.mark.parametrize("values", [{"p99": 101}, {"p99": float("nan")}, {"open": 1}, {"memory": 6}])
def test_a_place_that_is_given_back_late_or_kept_does_not_hold(values: dict[str, float]) -> None:
    assert not played(**values).held


@pytest.mark.parametrize("what", [OTHERWISE, End.DOUBLED.value, Rule.MISCOUNTED.value, "errors"])
def test_a_leaver_whose_request_ends_in_another_way_does_not_hold(what: str) -> None:
    bad = Played(Sizes(0, 0, 0, 0, 24), played().done[-1:])
    assert bad.held
    bad.done[-1].counts[what] = 1
    assert not bad.held


@pytest.mark.parametrize("more", [{"requests": 2000}, {"faults": 3}, {"kills": 2}, {"nonces": 600}, {"leavers": 48}])
def test_what_was_wanted_and_was_not_done_does_not_hold(more: dict[str, int]) -> None:
    assert not played(replace(SIZES, **more)).held


def test_a_kind_of_part_that_was_left_out_is_not_missed() -> None:
    only = Played(Sizes(0, 0, 0, 0, 24), played().done[-1:])
    assert only.held
    assert list(only.figures) == ["clients that leave"]


def test_of_what_was_wrong_all_is_told_that_is_known() -> None:
    bad = played(counts={End.FOREIGN.value: 1})
    bad.done[0].kept.append("foreign: another client's")
    assert "1 foreign, 0 wrong, 0 hung. Not held." in report.verdict(bad)
    assert "## Breaches\n\n- foreign: another client's" in page_of(bad)


def test_the_page_has_every_figure_and_counts_every_fault_by_part_and_kind() -> None:
    good = played(**{f"p99: {stage}": 3.0 for stage in STAGES})
    page = page_of(good)
    assert "| worker | 3 |" in page
    assert "| router |  | 1 |" in page
    assert "| lost | 0 | ≤ 0 | held |" in page
    assert "| after the end | 3.00 ms |" in page
    assert "In this run the stalls were 1.5 s in\n10 s." in page
    counted = {figure.name: figure.value for figure in report.result(good).parts["what was done"]}
    assert counted == {"worker: kill -9": 3, "router: SIGSTOP, SIGCONT": 1}


def page_of(run: Played) -> str:
    return markdown(report.result(run), command="make integrity", machine="a machine")
