"""A short run of several routers in network namespaces: requests have one end, and slots are not exceeded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtests.runs.judged import lines
from loadtests.runs.many import ends, slots
from loadtests.runs.many.namespaces import lacking, ours
from loadtests.runs.many.play import play
from loadtests.runs.many.record import Phase
from loadtests.runs.many.report import result
from loadtests.runs.many.sizes import QUICK
from services.cli import valkey


def test_a_short_run_among_faults_loses_no_request_and_exceeds_no_slot(tmp_path: Path) -> None:
    if why := lacking():
        pytest.skip(why)
    if valkey.program() is None:
        pytest.skip("no embedded Valkey for this platform")
    observed = asyncio.run(play(QUICK, tmp_path / "logs", lambda text: None))
    report = "\n".join([*lines(result(observed, QUICK)), *ends.ends(observed).kept])
    assert len(observed.spans) == QUICK.faults, report
    assert [stretch.phase for stretch in observed.stretches] == [Phase.CALM, Phase.STORE_FROZEN], report
    found = ends.ends(observed)
    assert not [end for end in ends.NEVER if found.counts[end]], report
    assert (found.hung, found.failed_while_frozen) == (0, 0), report
    assert found.counts[ends.End.RIGHT] > len(observed.entries) / 10, report
    assert all(worker.jobs and worker.max_held <= QUICK.slots for worker in observed.workers), report
    assert slots.after_faults(observed), report
    assert ours() == []  # everything that it made is gone
