"""A process that a test looks for may end between two looks: the look says so, and does not raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.processes import is_alive, runs

MODULE = "import time; print(flush=True); time.sleep(60)"


@pytest.mark.parametrize("collected", [False, True], ids=["a zombie", "collected"])
def test_an_ended_process_neither_runs_nor_is_alive(collected: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", MODULE], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # before, its command line may be empty: the kernel has not finished to start it
        process = psutil.Process(child.pid)
        assert (is_alive(process), runs(process, MODULE)) == (True, True)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        if collected:
            assert child.wait() == -signal.SIGKILL
        assert (is_alive(process), runs(process, MODULE)) == (False, False)
