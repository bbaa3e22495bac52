"""What fails among real processes, or while the machine stood still, is tried once more; what else fails has failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.stopwatch import LATE_S, Stopwatch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def stopwatch() -> Iterator[Stopwatch]:
    stopwatch = Stopwatch()
    yield stopwatch
    stopwatch.close()


def stand_still(stopwatch: Stopwatch) -> None:
    """As the machine would: its clock cannot tell. Again, until it says so: it needs a moment to start."""
    began = stopwatch.now()
    clock = psutil.Process(stopwatch.pid)
    while stopwatch.stood_since(began) == 0.0:
        clock.send_signal(signal.SIGSTOP)
        time.sleep(4 * LATE_S)
        clock.send_signal(signal.SIGCONT)


def test_a_machine_that_stood_still_is_told(stopwatch: Stopwatch) -> None:
    began = stopwatch.now()
    stand_still(stopwatch)
    assert stopwatch.stood_since(began) >= LATE_S


def test_what_was_before_is_not_counted(stopwatch: Stopwatch) -> None:
    before = stopwatch.now()
    stand_still(stopwatch)
    after = stopwatch.now()
    assert stopwatch.stood_since(after) < stopwatch.stood_since(before)


def test_its_clock_ends_with_whoever_started_it() -> None:
    program = "from tests.stopwatch import Stopwatch; s = Stopwatch(); s.now(); print(s.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        clock = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    clock.wait(60)


# ---- in a run

TRIED = """
from pathlib import Path
import pytest
from tests.conftest import STOPWATCH
from tests.test_stopwatch import stand_still

TRIED = Path(__file__).with_name("tried")

{mark}
@pytest.mark.parametrize("number", range({count}))
def test_of_a_machine(number):
    with TRIED.open("a") as tried:
        tried.write("once more,")
    {machine}
    assert {right}, "as it is"
"""
SECOND = "TRIED.read_text() == 'once more,once more,'"
STANDS = "stand_still(STOPWATCH)"
RUNS_ON = "STOPWATCH.stood_since = lambda began: 0.0"
ASKED = "STOPWATCH.stood_since = lambda began: Path('{folder}', 'asked').touch()"
AMONG_PROCESSES = "@pytest.mark.stack"


def run(
    folder: Path, right: str, machine: str = "pass", mark: str = "", conftest: str = "", count: int = 1
) -> tuple[int, str, int]:
    """A run of its own with this project's settings and hooks: its status, what it said, and how many tries it took."""
    (folder / "conftest.py").write_text(f"from tests.conftest import *\n{conftest}\n")
    (folder / "test_one.py").write_text(TRIED.format(right=right, machine=machine, mark=mark, count=count))
    options = ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", "-o", "timeout=60"]
    not_one_of_several = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        capture_output=True, text=True, cwd=ROOT, env=not_one_of_several, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, (folder / "tried").read_text().count("once more")


def test_what_fails_among_real_processes_is_tried_again_and_both_are_told(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path, SECOND, mark=AMONG_PROCESSES, conftest=RUNS_ON)
    assert status == 0, said
    assert "1 passed, 1 rerun" in said
    assert "AssertionError: as it is" in said


def test_what_failed_while_the_machine_stood_still_is_tried_again(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path, SECOND, STANDS)
    assert status == 0, said
    assert "1 passed, 1 rerun" in said


@pytest.mark.parametrize(("machine", "mark"), [(STANDS, ""), ("pass", AMONG_PROCESSES)])
def test_what_is_wrong_is_tried_twice_and_stays_wrong(tmp_path: Path, machine: str, mark: str) -> None:
    status, said, tries = run(tmp_path, "False", machine, mark)
    assert status == 1, said
    assert "1 failed, 1 rerun" in said
    assert tries == 2


def test_what_failed_while_the_machine_ran_on_is_not_tried_again(tmp_path: Path) -> None:
    status, said, tries = run(tmp_path, "False", conftest=RUNS_ON)
    assert status == 1, said
    assert "1 failed in" in said
    assert tries == 1


def test_for_what_passes_the_clock_is_not_asked(tmp_path: Path) -> None:
    status, said, _ = run(tmp_path, "True", conftest=ASKED.format(folder=tmp_path))
    assert status == 0, said
    assert not (tmp_path / "asked").exists()


def test_three_tries_more_are_the_most(tmp_path: Path) -> None:
    status, said, tries = run(tmp_path, "False", mark=AMONG_PROCESSES, count=5)
    assert status == 1, said
    assert "5 failed, 3 rerun" in said
    assert tries == 5 + 3
