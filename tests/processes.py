"""What the tests ask of another process, which may end at any moment."""

from __future__ import annotations

import psutil


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs. A zombie has ended, and only waits for its parent to collect its exit status."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def runs(process: psutil.Process, module: str) -> bool:
    """Whether the process was started with that word, and is still there: one that has ended has no command line."""
    try:
        return module in process.cmdline()
    except psutil.NoSuchProcess:  # ZombieProcess is one of them
        return False
