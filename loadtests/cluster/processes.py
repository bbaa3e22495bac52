"""Child processes that end with this one, on free loopback ports, with logs in files; and freezing processes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence, Set
from pathlib import Path
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, TypeVar

import psutil
import uvloop

from loadtests.internal import headers
from loadtests.paths import ROOT

PR_SET_PDEATHSIG = 1
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 5.0
FROZEN_WITHIN_S = 20.0
LOOK_EVERY_S = 0.02
LAST_WORDS_BYTES = 2000
INTERRUPTED = 130
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")  # no other setting of the caller may affect a figure
NOTHING: Mapping[str, str] = MappingProxyType({})
PORTS = range(10_000, 20_000)  # Linux takes source ports from 32,768 on, and could take a free one before its listener


class StandError(RuntimeError):
    """The test bed could not be set up, or one of its processes ended."""


def free_ports(count: int) -> list[int]:
    """Different ports without a listener, outside the range of outgoing connections.

    Raises RuntimeError if there are too few.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for number in random.sample(PORTS, len(PORTS)):
            if len(found) == count:
                return found
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", number))
                found.append(number)
    raise RuntimeError(f"no {count} ports from {PORTS.start} to {PORTS.stop - 1} are free")


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """These settings and the variables that every program needs."""
    return {key: os.environ[key] for key in KEPT if key in os.environ} | dict(env)


class Process:
    """One child. Start it from the main thread: the kernel ends it when that thread ends.

    `cores`: the cores that it may use, if not all.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path, cores: Set[int] = frozenset()
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._env = child_environment(env)
        self._folder = folder
        self._cores = cores
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Raises StandError if it was not started."""
        if self._popen is None:
            raise StandError(f"{self.name} has not been started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start or restart it, in the test bed's folder so that no .env is read."""
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command, env=self._env, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=self._begin,
            )  # fmt: skip

    def _begin(self) -> None:
        """Runs in the child before its program."""
        _die_with_parent()
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self.thaw()
        await self.leave(STOP_WITHIN_S)
        self.kill()

    async def leave(self, within_s: float) -> int | None:
        """SIGTERM; returns the exit status, or None if it still runs after `within_s`."""
        self._signal(signal.SIGTERM)
        end = monotonic() + within_s
        while self.running and monotonic() < end:  # noqa: ASYNC110  another process's end is no event of ours
            await asyncio.sleep(LOOK_EVERY_S)
        return None if self._popen is None else self._popen.poll()

    def _signal(self, number: int) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
        return ""

    def check(self) -> None:
        """Raises StandError if it has ended."""
        if not self.running:
            raise StandError(f"{self.name} has ended; its last words:\n{self.last_words()}")


T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or until SIGINT or SIGTERM, which stop the children; then exit with the shell's 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def python(*args: str) -> list[str]:
    return [sys.executable, *args]


@contextlib.asynccontextmanager
async def started(
    *words: str,
    ready: str = "",
    env: Mapping[str, str] = NOTHING,
    cores: Set[int] = frozenset(),
    under: Sequence[str] = (),
) -> AsyncIterator[Process]:
    """Run a module of the project as a process for the duration of the block, ready when `ready` answers 200.

    `under`: a program that runs it, with its arguments. Raises StandError if it ends before that, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as folder:
        settings = {"PYTHONPATH": str(ROOT), **env}
        process = Process(words[0], [*under, *python("-m", *words)], settings, Path(folder), cores)
        process.start()
        try:
            if ready:
                await until_ready(process, ready)
            yield process
        finally:
            await process.stop()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


async def until_ready(process: Process, url: str, within_s: float = READY_WITHIN_S) -> None:
    """Wait until GET answers 200. Raises StandError if the process ends or is not ready in time."""
    end = monotonic() + within_s
    while monotonic() < end:
        process.check()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(get, url)
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise StandError(f"{process.name} was not ready at {url} within {within_s:g} s:\n{process.last_words()}")


def get(url: str) -> bytes:
    """The body of a 200, requested with the running stack's token if there is one. Raises OSError for anything else."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers()), timeout=5) as answer:
        body: Any = answer.read()
        return bytes(body)


# Frozen processes: alive, sockets open, no answers.


def family(pid: int) -> list[int]:
    """A process and all its descendants, the parent first; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread has stopped: the call returns earlier than that.

    Raises ProcessLookupError if there is no such process, StandError if it does not stop.
    """
    os.kill(pid, signal.SIGSTOP)
    end = monotonic() + FROZEN_WITHIN_S
    while not _stands_still(pid):
        if monotonic() > end:
            raise StandError(f"process {pid} has not stopped within {FROZEN_WITHIN_S:g} s")
        sleep(0.001)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process and its descendants until the block ends, or this process does, even if it is killed.

    A shell that reads from a pipe of this process resumes them at the pipe's end.
    """
    pids = family(pid)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -CONT {' '.join(map(str, pids))}"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with guard:  # its end closes the pipe and waits for the shell
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                freeze(each)
        yield


def _stands_still(pid: int) -> bool:
    if sys.platform != "linux":
        return True  # cannot be observed
    try:
        stats = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "TtZ" for stat in stats)
    except FileNotFoundError:  # the process has ended
        return not Path(f"/proc/{pid}").exists()
    except ProcessLookupError:  # a thread has ended meanwhile: check again
        return False
