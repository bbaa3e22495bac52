"""Processor use during a load: the router, the workers, this client and other programs, from /proc.

A disturbed measurement must say so. Without /proc everything is 0.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from time import perf_counter, process_time

from loadtests.cluster.stand import Stand

TOO_BUSY = 0.15
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BUSY = (1, 2, 3, 6, 7, 8)  # user, nice, system, irq, softirq, steal, in the first line of /proc/stat
UTIME, STIME = 11, 12  # after the command's closing parenthesis, in /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor seconds and wall seconds."""

    wall_s: float = 0.0
    machine_s: float = 0.0
    router_s: float = 0.0
    workers_s: float = 0.0
    client_s: float = 0.0

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def router(self) -> float:
        """Share of one core."""
        return self.router_s / self.wall_s if self.wall_s else 0.0

    @property
    def others(self) -> float:
        """Share of the whole machine that other programs used."""
        ours = self.router_s + self.workers_s + self.client_s
        return max(0.0, self.machine_s - ours) / (self.wall_s * (os.cpu_count() or 1)) if self.wall_s else 0.0


def read(stand: Stand) -> Cpu:
    """Totals so far."""
    router = sum(_of(server.process.pid) for server in stand.fronts)
    workers = sum(_of(worker.process.pid) for worker in stand.workers)
    return Cpu(perf_counter(), _machine(), router, workers, process_time())


async def busy_now(seconds: float = 1.0) -> float:
    """Share of the machine in use while this process waits."""
    began, used = perf_counter(), _machine()
    await asyncio.sleep(seconds)
    return (_machine() - used) / ((perf_counter() - began) * (os.cpu_count() or 1))


async def calm(within_s: float) -> None:
    """Wait up to `within_s` until others use little of the machine."""
    until = perf_counter() + within_s
    while await busy_now(2.0) >= TOO_BUSY and perf_counter() < until:
        continue


async def warning() -> str:
    """The warning before measuring on a busy machine; empty on an idle one."""
    busy = await busy_now()
    if busy < TOO_BUSY:
        return ""
    return f"Other programs use {busy:.0%} of this machine now: figures will be worse than they could be, or worthless."


def _of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_S


def _machine() -> float:
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return sum(int(fields[index]) for index in BUSY) / TICKS_PER_S
