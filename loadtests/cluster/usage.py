"""Pinning to cores, and a process's processor time and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Set
from pathlib import Path

import psutil

MB = 2**20


def cores() -> tuple[frozenset[int], frozenset[int]]:
    """One core for the measured process and one for the others; the same one if there is only one."""
    have = sorted(os.sched_getaffinity(0))
    return frozenset(have[:1]), frozenset(have[-1:])


@contextlib.contextmanager
def pinned(to: Set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, to)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def rss_mb(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / MB


def peak_mb(pid: int) -> float:
    """The peak resident memory of a process, from Linux."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def cpu_s(pid: int) -> float:
    """Processor seconds of all threads of a process so far, to the nanosecond; other sources count ticks of 10 ms."""
    spent_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9
