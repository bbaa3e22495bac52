"""Several routers in network namespaces: a short run, whose requests have one end, and one that is interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from loadtests.cluster.processes import INTERRUPTED, LOOK_EVERY_S, READY_WITHIN_S, StandError, family
from loadtests.paths import ROOT
from loadtests.runs.judged import lines
from loadtests.runs.many import ends, slots
from loadtests.runs.many.namespaces import clear, lacking, ours
from loadtests.runs.many.play import play
from loadtests.runs.many.record import Phase
from loadtests.runs.many.report import result
from loadtests.runs.many.sizes import QUICK
from services.cli import valkey


@pytest.fixture(autouse=True)
def _machine() -> None:
    if why := lacking():
        pytest.skip(why)
    if valkey.program() is None:
        pytest.skip("no embedded Valkey for this platform")


def test_a_short_run_among_faults_loses_no_request_and_exceeds_no_slot(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_namespace(number: signal.Signals, tmp_path: Path) -> None:
    with _under_way(tmp_path / "logs") as run:
        _, *children = family(run.pid)
        run.send_signal(number)
        assert run.wait(READY_WITHIN_S) == INTERRUPTED
        assert ours() == []
    assert len(children) >= QUICK.routers + QUICK.workers + 1
    assert not [pid for pid in children if psutil.pid_exists(pid)]


def test_what_a_killed_run_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with _under_way(tmp_path / "logs"):
        pass
    assert ours()
    end = monotonic() + READY_WITHIN_S
    while ours() and monotonic() < end:  # its processes end a moment after it
        try:
            clear()
        except StandError:
            sleep(LOOK_EVERY_S)
    assert ours() == []


COMMAND = """
import sys
from pathlib import Path
from loadtests.cluster.processes import run
from loadtests.runs.many.play import play
from loadtests.runs.many.sizes import QUICK

run(play(QUICK, Path(sys.argv[1]), lambda text: None))
"""


@contextmanager
def _under_way(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A short run as a process, until the block ends, which kills it. Its last router has begun its log."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", COMMAND, str(folder)], env=env, start_new_session=True)
    try:
        log, end = folder / f"router-{QUICK.routers - 1}.log", monotonic() + READY_WITHIN_S
        while not (log.exists() and log.stat().st_size):
            assert run.poll() is None, "it has ended by itself"
            assert monotonic() < end, f"{log} has not been written"
            sleep(LOOK_EVERY_S)
        yield run
    finally:
        run.kill()
        run.wait()
