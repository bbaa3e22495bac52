"""A child process that cannot outlive its supervisor, and whose log can be read.

* **Its own session** (`setsid`): Ctrl-C in the terminal reaches only the supervisor, which stops its children in order.
* **The parent-death signal** (`PR_SET_PDEATHSIG`, Linux): `kill -9` of the supervisor leaves no child. The kernel ties
  it to the *thread* that forked, so `spawn` must run on the main thread.
* **A log opened with `O_APPEND`**, new at each start (the last one is kept as `.1`), so that it can be cut while the
  child writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.cli.errors import LabError

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 16_384
MAX_LOG_BYTES = 32 * 1024 * 1024
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


@dataclass(frozen=True, slots=True)
class Identity:
    """The user a child runs as: a command before its own, and the user and group to change to."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None


@dataclass
class Child:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    identity: Identity = field(default_factory=Identity)
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("spawn from the main thread: a child ends with the thread that forked it")
        rotate(self.log)
        command = [*self.identity.prefix, *self.argv]
        try:
            with open(self.log, "ab", opener=private) as output:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(self.env),
                    start_new_session=True,
                    preexec_fn=dies_with_parent(self.orphan_signal),
                    **as_user(self.identity),
                )
        except OSError as error:
            raise LabError(f"{self.name} could not be started: {command[0]}: {error.strerror}.") from error

    @property
    def pid(self) -> int:
        return self._started().pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs or before it is started."""
        return None if self.process is None else self.process.poll()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        return self._started().wait()

    def stop(self, within_s: float) -> bool:
        """Send the stop signal, then SIGKILL after `within_s` seconds. Returns whether it ended by itself."""
        if not self.running:
            return True
        process = self._started()
        self.signal(self.stop_signal)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to its session, and wait for its end."""
        process = self._started()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._started().send_signal(number)

    def tail(self, lines: int = 12) -> tuple[str, ...]:
        return tail(self.log, lines)

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError(f"{self.name} has not been started")
        return self.process


def dies_with_parent(number: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` that asks the kernel to send `number` when the forking thread ends."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def set_signal() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
            if os.getppid() != parent:  # the parent died between fork and prctl, so no signal will come
                os._exit(1)

    return set_signal


def as_user(identity: Identity) -> dict[str, Any]:
    if identity.uid is None:
        return {}
    return {"user": identity.uid, "group": identity.gid, "extra_groups": []}


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def private(path: str, flags: int) -> int:
    """An opener for files that only this user can read, since a log names tenants and requests."""
    return os.open(path, flags, PRIVATE_FILE)


def rotate(log: Path) -> None:
    """Start a new log; keep the last one, which may say why the last run ended."""
    log.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    if log.exists():
        log.chmod(PRIVATE_FILE)  # an earlier version created it readable
        log.replace(log.with_name(log.name + ".1"))


def trim(log: Path, limit_bytes: int = MAX_LOG_BYTES) -> bool:
    """Cut a log above its bound, and keep its last half beside it. Returns whether it was cut."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= limit_bytes:
        return False
    with log.open("rb") as source:
        source.seek(size - limit_bytes // 2)
        with open(log.with_name(log.name + ".1"), "wb", opener=private) as kept:
            kept.write(source.read(limit_bytes // 2))
    os.truncate(log, 0)
    return True


def tail(log: Path, lines: int) -> tuple[str, ...]:
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - TAIL_BYTES))
            text = source.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]
