"""The short version of the long run: a dozen faults of every part, and every request has one end that is its own."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.runs.chaos import report
from loadtests.runs.chaos.checker import End
from loadtests.runs.chaos.deck import ROUTER, TIMES, WORKER, Card, What
from loadtests.runs.chaos.run import Result, Wanted, play
from tests.real.loadtests.standing import no_stack

SHORT = Wanted(requests=1500, faults=12, seed=15, per_s=50.0)


def test_whatever_dies_freezes_or_is_cut_off_no_request_is_lost_doubled_foreign_or_hung() -> None:
    if why := no_stack():
        pytest.skip(why)
    result = asyncio.run(play(SHORT, say=lambda text: None))
    told = "\n".join(report.lines(result))
    assert result.held, told
    assert result.done.keys() >= {Card(ROUTER, What.KILL), Card(WORKER, What.KILL), Card(WORKER, What.FREEZE)}, told
    assert {card.part for card in result.done} == set(TIMES), told
    assert result.checked.ends[End.RIGHT] > SHORT.requests / 10, told  # a slow machine is down longer, and lies never
    assert result.checked.ends[End.UNREACHED] > 0, told  # the router was gone, and was missed
    assert_page(result)


def assert_page(result: Result) -> None:
    page = report.page(result, command="a test", machine="a machine")
    assert f"| asked | {SHORT.requests:,} | {SHORT.requests:,} |" in page
    assert "0 lost, 0 answered twice, 0 foreign, 0 wrong, 0 hung. Held." in page
