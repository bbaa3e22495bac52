"""What is frozen thaws: at the end, and when whoever froze it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadtests.cluster import parts
from loadtests.cluster.parts import family, frozen
from loadtests.cluster.steadyports import BEYOND, FIRST, steady_ports
from loadtests.paths import ROOT

SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"


@dataclass
class Sleeper:
    """A part that sleeps, and a child of it."""

    pid: int
    name: str = "sleeper"


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
        with frozen(Sleeper(process.pid)):
            until(lambda: all(map(stopped, everyone)), "both stand still")
        until(lambda: not any(map(stopped, everyone)), "both go on")
        for pid in everyone:
            psutil.Process(pid).kill()


def test_what_was_frozen_thaws_though_whoever_froze_it_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from types import SimpleNamespace\n"
        "from loadtests.cluster import parts\n"
        "parts.THAW_WITHIN_S = 4\n"
        "with parts.frozen(SimpleNamespace(pid=int(sys.argv[1]))):\n"
        "    print('frozen', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        command = [sys.executable, "-c", program, str(process.pid)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as freezer:
            assert freezer.stdout is not None
            assert freezer.stdout.readline() == "frozen\n"
            until(lambda: stopped(process.pid), "it is frozen")  # a signal takes its time to arrive
            freezer.send_signal(signal.SIGKILL)
        until(lambda: not stopped(process.pid), "it goes on")
        process.kill()


def test_no_guard_is_left_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        before = set(psutil.Process().children(recursive=True))
        with frozen(Sleeper(process.pid)):
            pass
        until(lambda: set(psutil.Process().children(recursive=True)) <= before, "the guard has left")
        assert not stopped(process.pid)
        process.kill()


def test_nobody_is_the_family_of_who_is_gone() -> None:
    assert family(2**22 - 1) == []
    assert parts.THAW_WITHIN_S > 10  # longer than any fault holds, even on a slow machine


def test_ports_are_steady_and_two_runs_share_none() -> None:
    one, other = steady_ports(), steady_ports()
    mine, theirs = {next(one) for _ in range(12)}, {next(other) for _ in range(12)}
    assert not mine & theirs
    assert all(FIRST < port < BEYOND for port in mine | theirs)
    one.close()
    other.close()
