"""The short version of the long run: every kind of part on a real stack, and every request has one end of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtests.report.record import Record
from loadtests.runs.integrity import report
from loadtests.runs.integrity.checker import End
from loadtests.runs.integrity.parts import Sizes
from loadtests.runs.integrity.run import run
from loadtests.runs.integrity.schedule import ROUTER, TIMES, WORKER, What
from loadtests.runs.judged import lines
from tests.real.loadtests.standing import no_stack

SHORT = Sizes(requests=1500, faults=12, kills=4, nonces=1000, leavers=240, seed=15, per_s=50.0)


def test_whatever_dies_freezes_lies_or_leaves_no_request_is_lost_doubled_foreign_or_hung(tmp_path: Path) -> None:
    if why := no_stack():
        pytest.skip(why)
    result = asyncio.run(run(SHORT, Record(tmp_path / "record.jsonl", {}), lambda text: None))
    told = "\n".join([*lines(report.result(result)), *(what for done in result.done for what in done.kept)])
    assert result.held, told
    done = result.faults
    assert done.keys() >= {f"{ROUTER}: {What.KILL}", f"{WORKER}: {What.KILL}", f"{WORKER}: {What.FREEZE}"}, told
    assert {name.split(": ")[0] for name in done} == set(TIMES), told
    assert result.counts[End.RIGHT.value] > SHORT.requests / 10, told  # a slow machine is down longer, and lies never
    assert result.counts[End.UNREACHED.value] > 0, told  # the router was gone, and was missed
    assert report.verdict(result).endswith("0 lost, 0 answered twice, 0 foreign, 0 wrong, 0 hung. Held.")
