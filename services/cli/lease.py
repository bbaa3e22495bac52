"""One stack per data folder: a kernel lock (`flock` on `weir.pid`), and a note that says where the stack listens.

The kernel releases the lock with the process, so a pid file without a lock is only left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from services.cli.child import PRIVATE_FILE, PRIVATE_FOLDER, private
from services.cli.errors import LabError

POLL_S = 0.05
KEPT_FOLDERS = ("postgres", "valkey", "logs")


@dataclass(frozen=True, slots=True)
class StackNote:
    """Where a running stack can be reached. The database URL holds its password, so the file is 0600."""

    pid: int
    router_url: str
    retrieval_url: str
    worker_urls: list[str]
    postgres_url: str
    redis_url: str
    governor_address: str
    storm_url: str = ""


class Lease:
    """The lock that `weir up` holds while it runs. `with Lease(folder)` raises LabError if another process holds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._file = _open(self._folder)
        except OSError as error:
            raise LabError(
                f"{error.filename or self._folder} cannot be written ({error.strerror}): choose a folder with DATA_DIR."
            ) from error
        if not _lock_with_retries(self._file):
            pid = self._file.read().strip()
            self._file.close()
            raise LabError(
                f"A stack already runs in {self._folder} (pid {pid}): `weir status` shows it, `weir down` stops it, "
                "and DATA_DIR with other ports starts a second one."
            )
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            (self._folder / "stack.json").unlink(missing_ok=True)
            self._file.truncate(0)  # emptied, not removed: otherwise two processes could lock two files of one name
            self._file.close()

    def publish(self, note: StackNote) -> None:
        """Write where the stack listens, for other terminals."""
        fresh = self._folder / "stack.json.partial"
        fresh.unlink(missing_ok=True)
        with open(fresh, "x", encoding="utf-8", opener=private) as file:
            json.dump(asdict(note), file, indent=2)
        fresh.rename(self._folder / "stack.json")


def running_pid(folder: Path) -> int | None:
    """The supervisor that holds the folder, if any."""
    try:
        with _open(folder, create=False) as file:
            if _lock(file):
                return None
            text = file.read().strip()
            return int(text) if text.isdigit() else None
    except OSError:
        return None


def running_stack(folder: Path) -> StackNote | None:
    """Where the running stack listens; None until it is up."""
    if running_pid(folder) is None:
        return None
    try:
        return StackNote(**json.loads((folder / "stack.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def stop_running(folder: Path, within_s: float) -> int | None:
    """Ask the supervisor to stop, and wait. Returns its pid, or None if nothing runs. Raises LabError."""
    pid = running_pid(folder)
    if pid is None:
        return None
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return pid
    except PermissionError as error:
        raise LabError(f"The stack in {folder} (pid {pid}) belongs to another user.") from error
    deadline = time.monotonic() + within_s
    while running_pid(folder) == pid:
        if time.monotonic() > deadline:
            raise LabError(f"The stack (pid {pid}) has not stopped in {within_s:.0f} s: `kill -9 {pid}` ends it all.")
        time.sleep(POLL_S)
    return pid


def clear(folder: Path) -> list[str]:
    """Remove the files of the lab, and no other files in that folder. Raises LabError while a stack runs."""
    pid = running_pid(folder)
    if pid is not None:
        raise LabError(f"A stack runs in {folder} (pid {pid}): `weir down` first.")
    removed = [name for name in KEPT_FOLDERS if (folder / name).exists()]
    for name in removed:
        shutil.rmtree(folder / name)
    for name in ("weir.pid", "stack.json", "internal-token"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return removed


def _open(folder: Path, *, create: bool = True) -> IO[str]:
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    return os.fdopen(os.open(folder / "weir.pid", flags, PRIVATE_FILE), "r+", encoding="ascii")


def _lock_with_retries(file: IO[str]) -> bool:
    """Try for a moment, since `weir status` holds the lock for an instant."""
    for _ in range(10):
        if _lock(file):
            return True
        time.sleep(POLL_S / 5)
    return False


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
