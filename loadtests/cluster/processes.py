"""Child processes that cannot outlive us, on free ports of loopback, their words kept in files; what is frozen."""

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
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")  # no setting of the caller's may move a figure
NOTHING: Mapping[str, str] = MappingProxyType({})
LENT = range(10_000, 20_000)  # Linux takes source ports from 32,768 on, and would take a free one before we do


class StandError(RuntimeError):
    """The stand could not be set up, or one of its processes ended."""


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on, and that no outgoing connection will take before they are used.

    Raises RuntimeError where there are not so many.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for number in random.sample(LENT, len(LENT)):
            if len(found) == count:
                return found
            with contextlib.suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", number))
                found.append(number)
    raise RuntimeError(f"no {count} ports from {LENT.start} to {LENT.stop - 1} are free")


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """These settings and nothing else but what every program needs."""
    return {key: os.environ[key] for key in KEPT if key in os.environ} | dict(env)


class Process:
    """One child. Started by `start`, from the main thread: the kernel ends it when that thread ends.

    `cores`: those that it may use, if not all.
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
        """Raises StandError unless it has been started."""
        if self._popen is None:
            raise StandError(f"{self.name} has not been started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start it, or start it again. It runs in the stand's folder, so that no .env is read."""
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command, env=self._env, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=self._begin,
            )  # fmt: skip

    def _begin(self) -> None:
        """In the child, before its program."""
        _die_with_parent()
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once, and gone when this returns."""
        self._signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait()

    async def stop(self) -> None:
        """Politely, then not."""
        self.thaw()
        await self.leave(STOP_WITHIN_S)
        self.kill()

    async def leave(self, within_s: float) -> int | None:
        """Politely; its exit status, or None where it still runs after so long."""
        self._signal(signal.SIGTERM)
        end = monotonic() + within_s
        while self.running and monotonic() < end:  # noqa: ASYNC110  another process's end is no event of ours
            await asyncio.sleep(LOOK_EVERY_S)
        return None if self._popen is None else self._popen.poll()

    def _signal(self, number: int) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def last_words(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
        return ""

    def check(self) -> None:
        """Raises StandError if it has ended."""
        if not self.running:
            raise StandError(f"{self.name} has ended; its last words:\n{self.last_words()}")


T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or to SIGINT or SIGTERM, which stop what was started; then leave with the shell's 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def python(*args: str) -> list[str]:
    """A command line of this interpreter."""
    return [sys.executable, *args]


@contextlib.asynccontextmanager
async def started(
    *words: str, ready: str = "", env: Mapping[str, str] = NOTHING, cores: Set[int] = frozenset()
) -> AsyncIterator[Process]:
    """A module of the project as a process of its own, while the block lasts: from when `ready` answers 200.

    Raises StandError where it ends before that, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as folder:
        settings = {"PYTHONPATH": str(ROOT), **env}
        process = Process(words[0], python("-m", *words), settings, Path(folder), cores)
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
    """Until GET answers 200. Raises StandError if the process ends, or is not ready in time."""
    end = monotonic() + within_s
    while monotonic() < end:
        process.check()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(get, url)
            return
        await asyncio.sleep(LOOK_EVERY_S)
    raise StandError(f"{process.name} was not ready at {url} within {within_s:g} s:\n{process.last_words()}")


def get(url: str) -> bytes:
    """The body of a 200, with the token of the stack that runs, if there is one. Raises OSError for anything else."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers()), timeout=5) as answer:
        body: Any = answer.read()
        return bytes(body)


# What stands still: alive, its sockets open, and no answer.


def family(pid: int) -> list[int]:
    """A process and all that it has started, and they; the parent first. None, where it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def freeze(pid: int) -> None:
    """SIGSTOP, and until every thread stands still: the call returns before that, and they go on for a moment.

    Raises ProcessLookupError where there is no such process, StandError where it does not stop.
    """
    os.kill(pid, signal.SIGSTOP)
    end = monotonic() + FROZEN_WITHIN_S
    while not _stands_still(pid):
        if monotonic() > end:
            raise StandError(f"process {pid} has not stopped within {FROZEN_WITHIN_S:g} s")
        sleep(0.001)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process and all that it has started stand still until the end, or until we are gone: killed, for example.

    What lets them go on is a shell that reads from us, and so hears of our end, whatever that is.
    """
    pids = family(pid)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -CONT {' '.join(map(str, pids))}"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    with guard:  # its end closes what the shell reads, and waits for it
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                freeze(each)
        yield


def _stands_still(pid: int) -> bool:
    if sys.platform != "linux":
        return True  # nothing tells
    try:
        stats = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "TtZ" for stat in stats)
    except FileNotFoundError:  # the process has ended
        return not Path(f"/proc/{pid}").exists()
    except ProcessLookupError:  # a thread has ended meanwhile: look again
        return False
