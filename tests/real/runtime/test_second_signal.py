"""A second signal to a process that is leaving ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from tests.real.runtime.test_watchdog_ends_a_process import CHILD, ROOT


def test_a_second_signal_during_the_delay_leaves_at_once() -> None:
    script = CHILD.replace("watchdog_s=float(sys.argv[1]),", "drain_delay_s=float(sys.argv[1]),")
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(600)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    too_late = threading.Timer(60, child.kill)  # else a child that goes on silently would be read from for 600 s
    too_late.start()
    try:
        told = iter(child.stdout.readline, b"")
        assert any(b'"listening"' in line for line in told)
        os.kill(child.pid, signal.SIGTERM)
        assert any(b'"draining"' in line for line in told)
        assert child.poll() is None
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait(60) == 1
    finally:
        too_late.cancel()
        child.kill()
        child.communicate()
