"""The kernel counts who had to wait for a processor, of real processes that want the same one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from loadtests.stillness import waited_for_a_processor_s


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count who waits")
def test_a_process_that_shares_its_processor_is_seen_to_wait(tmp_path: Path) -> None:
    """Two that want the same core all the time: each waits about half of it."""
    core = min(os.sched_getaffinity(0))
    pids = [os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", _BUSY.format(core=core)]) for _ in range(2)]
    try:
        deadline = time.monotonic() + 20
        while min(map(waited_for_a_processor_s, pids)) < 0.1:
            assert time.monotonic() < deadline, "neither was seen to wait"
            time.sleep(0.05)
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


_BUSY = "import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
