"""A loop that stands still ends its process, and time in which the process was stopped does not count."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.runtime.log import Log
from services.runtime.settings import environment
from services.runtime.watchdog import Standstill, watched

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import asyncio, io, re, sys, time
from services.runtime.drain import Drain
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process, run
from services.runtime.guard import GuardLimits
from services.runtime.service import Readiness, Service
from services.runtime.telemetry import metrics_app, new_registry

def waits_and_lets_others_run():
    time.sleep(600)

def keeps_the_interpreter():
    re.fullmatch("(a|a)*b", "a" * 64)

async def start():
    if len(sys.argv) > 2:
        asyncio.get_running_loop().call_soon(globals()[sys.argv[2]])

def build():
    log, drain = Log("stuck"), Drain()
    service = Service("stuck", {}, ready=lambda: Readiness(True), log=log, drain=drain)
    return Process(
        name="stuck", listener=HttpListener(service, GuardLimits(), 75.0), metrics=metrics_app(new_registry()), log=log,
        drain=drain, host="127.0.0.1", port=0, metrics_host="127.0.0.1", metrics_port=0, start=start,
        watchdog_s=float(sys.argv[1]),
    )

sys.exit(run(build))
"""


def child(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_the_limit_is_reached_by_seconds_without_a_turn() -> None:
    standstill = Standstill(limit_s=10.0, every_s=1.0, now=0.0)
    assert not standstill.look(1.0, turns=1)
    assert [standstill.look(now, turns=1) for now in (5.0, 7.0, 9.0, 10.0, 11.0)] == [False] * 5
    assert not standstill.look(12.0, turns=2), "it turned"
    found = [standstill.look(13.0 + second, turns=2) for second in range(10)]
    assert found == [False] * 9 + [True]


def test_a_process_that_was_stopped_has_not_stood_still() -> None:
    standstill = Standstill(limit_s=10.0, every_s=1.0, now=0.0)
    standstill.look(1.0, turns=1)
    assert not standstill.look(3601.0, turns=1)
    assert standstill.seconds == 2.0, "an hour of sleep is counted as two of its looks, at most"


@pytest.mark.parametrize("fault", ["waits_and_lets_others_run", "keeps_the_interpreter"])
def test_a_process_whose_loop_stands_still_ends_itself_and_shows_where(fault: str) -> None:
    stuck = child("0.5", fault)
    out, err = stuck.communicate(timeout=60)
    assert stuck.returncode == -signal.SIGPROF
    assert fault.encode() in err
    if fault == "waits_and_lets_others_run":  # nothing can write a line while the interpreter is kept
        assert b"the event loop stands still" in out


def test_a_process_that_is_stopped_for_longer_than_the_limit_goes_on() -> None:
    limit_s = 1.0
    alive = child(str(limit_s))
    assert alive.stdout is not None
    try:
        assert b'"listening"' in alive.stdout.readline()
        os.kill(alive.pid, signal.SIGSTOP)
        time.sleep(1.5 * limit_s)
        os.kill(alive.pid, signal.SIGCONT)
        os.kill(alive.pid, signal.SIGTERM)
        alive.communicate(timeout=60)
        assert alive.returncode == 0
    finally:
        alive.kill()
        alive.communicate()


def test_without_a_limit_nothing_is_watched() -> None:
    before = signal.getitimer(signal.ITIMER_PROF)

    async def main() -> None:
        log = Log("test")
        with watched(0.0, log):
            assert signal.getitimer(signal.ITIMER_PROF) == before
        log.close()

    asyncio.run(main())
