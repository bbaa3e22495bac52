"""The watchdog of a real process: one that stands still ends, and one that was stopped goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtests.cluster.processes import freeze
from services.runtime.settings import environment

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import asyncio, io, re, sys, time
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process, run
from services.runtime.guard import GuardLimits
from services.runtime.service import Service
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
    service = Service("stuck", new_api("Stuck", "For a test."), log=log, drain=drain)
    return Process(
        name="stuck", listener=HttpListener(service, GuardLimits(), 75.0), log=log,
        metrics=metrics_app(new_registry(), log),
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


@pytest.mark.parametrize("fault", ["waits_and_lets_others_run", "keeps_the_interpreter"])
def test_a_process_whose_loop_stands_still_ends_itself_and_shows_where(fault: str) -> None:
    stuck = child("0.5", fault)
    out, err = stuck.communicate(timeout=60)
    assert stuck.returncode == -signal.SIGPROF
    assert fault.encode() in err
    if fault == "waits_and_lets_others_run":  # nothing can write a line while the interpreter is kept
        assert b"the event loop is blocked" in out


def test_a_process_that_is_stopped_for_longer_than_the_limit_goes_on() -> None:
    limit_s = 1.0
    alive = child(str(limit_s))
    assert alive.stdout is not None
    try:
        assert b'"listening"' in alive.stdout.readline()
        freeze(alive.pid)
        time.sleep(1.5 * limit_s)
        os.kill(alive.pid, signal.SIGCONT)
        os.kill(alive.pid, signal.SIGTERM)
        alive.communicate(timeout=60)
        assert alive.returncode == 0
    finally:
        alive.kill()
        alive.communicate()
