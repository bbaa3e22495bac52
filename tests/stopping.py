"""Servers that stand still: alive, their sockets open, and no answer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP to a process and all that it has started; SIGCONT afterwards, to those that are left."""
    server = psutil.Process(pid)
    everyone = [server, *server.children(recursive=True)]
    for process in everyone:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
