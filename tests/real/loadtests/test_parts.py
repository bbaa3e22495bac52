"""What is frozen goes on at the end, and when the process that froze it is gone. Ports that a process comes back to."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from loadtests.cluster.processes import family, frozen
from loadtests.cluster.steadyports import BEYOND, FIRST, steady_ports
from loadtests.paths import ROOT

SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_a_frozen_part_stands_still_with_all_its_children_and_then_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as process:
        until(lambda: len(family(process.pid)) == 2, "it has a child")
        everyone = family(process.pid)
        with frozen(process.pid):
            assert all(map(stopped, everyone))
        until(lambda: not any(map(stopped, everyone)), "both go on")
        for pid in everyone:
            psutil.Process(pid).kill()


def test_what_was_frozen_thaws_when_its_freezer_is_killed() -> None:
    program = (
        "import sys, time\n"
        "from loadtests.cluster.processes import frozen\n"
        "with frozen(int(sys.argv[1])):\n"
        "    print('frozen', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        command = [sys.executable, "-c", program, str(process.pid)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as freezer:
            assert freezer.stdout is not None
            assert freezer.stdout.readline() == "frozen\n"
            assert stopped(process.pid)
            freezer.send_signal(signal.SIGKILL)
        until(lambda: not stopped(process.pid), "it goes on")
        process.kill()


def test_no_guard_is_left_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        before = set(psutil.Process().children(recursive=True))
        with frozen(process.pid):
            pass
        until(lambda: set(psutil.Process().children(recursive=True)) <= before, "the guard has left")
        assert not stopped(process.pid)
        process.kill()


def test_a_process_that_is_gone_has_no_family_and_can_be_frozen() -> None:
    assert family(2**22 - 1) == []
    with frozen(2**22 - 1):
        pass


def test_ports_are_steady_and_two_runs_share_none() -> None:
    one, other = steady_ports(), steady_ports()
    mine, theirs = {next(one) for _ in range(12)}, {next(other) for _ in range(12)}
    assert not mine & theirs
    assert all(FIRST < port < BEYOND for port in mine | theirs)
    one.close()
    other.close()
