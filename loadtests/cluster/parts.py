"""A part of the stack that can be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import psutil

from loadtests.cluster.processes import StandError
from loadtests.cluster.stand import Server, ready
from services.cli.errors import LabError
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

THAW_WITHIN_S = 20
"""Whatever becomes of this program, nothing that it has frozen stays so for longer, unless it says otherwise."""


class Part(Protocol):
    """`start` returns when it can take work. `pid`: its first process; the others are that one's children."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    async def start(self) -> None: ...


@dataclass
class Service:
    """One of ours."""

    server: Server

    @property
    def name(self) -> str:
        return self.server.process.name

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def kill(self) -> None:
        self.server.process.kill()

    async def start(self) -> None:
        self.server.process.start()
        await ready(self.server)


@dataclass
class Store:
    """PostgreSQL or Valkey. What may take long runs in a thread; processes are started from the main one."""

    name: str
    server: EmbeddedPostgres | EmbeddedValkey

    @property
    def pid(self) -> int:
        return self.server.pid

    def kill(self) -> None:
        self.server.child.kill()

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self.server.prepare)
            self.server.spawn()
            while not await asyncio.to_thread(self.server.wait_ready):
                self.server.spawn()
        except LabError as error:
            raise StandError(str(error)) from error


def family(pid: int) -> list[int]:
    """A process and all that it has started, and they; the parent first. Nobody, where it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def frozen(part: Part, within_s: float | None = None) -> Iterator[None]:
    """SIGSTOP to its processes, SIGCONT to those that are left: at the end, or soon after we are no more.

    Within `within_s`, or `THAW_WITHIN_S`, they thaw in any case.
    """
    pids = family(part.pid)
    guard = _guard(pids, within_s or THAW_WITHIN_S)
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)
        _signal([-guard.pid], signal.SIGKILL)  # its whole session: the shell and its sleep
        guard.wait()


def _guard(pids: Iterable[int], within_s: float) -> subprocess.Popen[bytes]:
    """A process of its own session that thaws them after a while."""
    script = f"sleep {within_s}; kill -CONT {' '.join(map(str, pids))}"
    return subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
