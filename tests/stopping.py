"""Servers that stand still: alive, their sockets open, and no answer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

STOPPED_WITHIN_S = 20.0
LOOK_EVERY_S = 0.001


def stop(pid: int) -> None:
    """SIGSTOP, and until every thread stands still: the call returns before that, and they go on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + STOPPED_WITHIN_S
    while not _stands_still(pid):
        assert time.monotonic() < end, f"process {pid} has not stopped within {STOPPED_WITHIN_S:g} s"
        time.sleep(LOOK_EVERY_S)


def _stands_still(pid: int) -> bool:
    stats = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
    try:
        return all(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "TtZ" for stat in stats)
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile: look again
        return False


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP to a process and all that it has started; SIGCONT afterwards, to those that are left."""
    server = psutil.Process(pid)
    everyone = [server, *server.children(recursive=True)]
    for process in everyone:
        stop(process.pid)
    try:
        yield
    finally:
        for process in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
