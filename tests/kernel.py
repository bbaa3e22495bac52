"""What a test may ask the kernel for. A test of the gate asks for nothing, unless the test says so.

The gate asks whether the logic is right. Whether a kernel schedules us, and how fast, is another question, and a test
that asks both fails by chance. So a test of the gate that starts a process fails, and one that opens a socket without
the marker `sockets`, and one that speaks to another machine: at once, with the call in its traceback, whoever made it.

| test | sockets on this machine | processes |
|---|---|---|
| in `tests/real/` | yes | yes |
| with a fixture of an embedded store | yes | the stores themselves |
| marked `sockets` | yes | no |
| any other | no | no |

A log of the gate has no thread that writes it. A thread is another clock: a line that it has not written yet is a fault
by chance, and a hundred of them that no test has stopped are a load on all tests that follow.

Python says what a program does by audit events (PEP 578). Three things do it without a word, and are watched here by
name: connections and processes of uvloop, processes of `multiprocessing`, and `gc.unfreeze`. For `tests/conftest.py`.
"""

from __future__ import annotations

import gc
import ipaddress
import multiprocessing.process
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from services.runtime.log import Log

PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
SOCKET_EVENTS = frozenset({"socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"})
NETWORK = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
EVERYWHERE = ("", "localhost", "<broadcast>")
"""Names of this machine that are no addresses."""


class AskedTheKernel(Exception):
    """A test of the gate did what only a test in `tests/real/` may do."""


@dataclass(frozen=True, slots=True)
class Leave:
    """What the test that runs now may ask for."""

    sockets: bool
    processes: bool
    elsewhere: bool = False


NOTHING = Leave(sockets=False, processes=False)
SOCKETS = Leave(sockets=True, processes=False)
ALL = Leave(sockets=True, processes=True, elsewhere=True)


class Watch:
    """Refuses what the test that runs now has no leave for. Between tests everything is allowed."""

    def __init__(self) -> None:
        self._leave = ALL
        self.refused: list[str] = []
        """What the test that runs now was refused. Code under test may swallow the error; this list stays."""
        self.unfrozen = False
        """It has called `gc.unfreeze`, which no audit event tells."""

    def install(self) -> None:
        """For the life of this process: an audit hook cannot be taken away."""
        sys.addaudithook(self._heard)
        for name in ("create_connection", "create_unix_connection", "create_datagram_endpoint"):
            _before(uvloop.Loop, name, lambda *given, **named: self.connects(_host_of(given, named)))
        for name in ("subprocess_exec", "subprocess_shell"):
            _before(uvloop.Loop, name, lambda *given, **_: self.starts(given[1:2]))
        _before(multiprocessing.process.BaseProcess, "start", lambda process: self.starts(process.name))
        _before(gc, "unfreeze", self._unfreezes)

    @property
    def leave(self) -> Leave:
        """What may be asked for now."""
        return self._leave

    @contextmanager
    def during(self, leave: Leave) -> Iterator[None]:
        """Apply this leave inside, and the earlier one again afterwards."""
        before, self._leave = self._leave, leave
        try:
            yield
        finally:
            self._leave = before

    def starts(self, program: object) -> None:
        """A process is about to start. Raises AskedTheKernel."""
        if not self._leave.processes:
            self._refuse(f"starts a process, {program!r}: a test of processes belongs in tests/real/")

    def connects(self, host: object) -> None:
        """A socket is about to get an address, or to speak to one. Raises AskedTheKernel."""
        if not self._leave.sockets:
            self._refuse(f"opens a socket to {host!r}: play it in memory (tests/world/), or mark the test `sockets`")
        elif not self._leave.elsewhere and not _is_here(host):
            self._refuse(f"speaks to {host!r}, which is not this machine")

    def _unfreezes(self) -> None:
        self.unfrozen = True

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROCESS_EVENTS:
            self.starts(arguments[:2])
        elif event in SOCKET_EVENTS and arguments[0].family in NETWORK and arguments[1] is not None:
            address = arguments[1]
            self.connects(address[0] if isinstance(address, tuple) else address)

    def _refuse(self, what: str) -> None:
        self.refused.append(what)
        raise AskedTheKernel(f"this test {what}")


def _before(owner: Any, name: str, ask: Callable[..., None]) -> None:
    """Have `ask` see the arguments of a method, or of a module's function, first."""
    method = getattr(owner, name)

    def asked(*given: Any, **named: Any) -> Any:
        ask(*given, **named)
        return method(*given, **named)

    setattr(owner, name, asked)


def _host_of(given: tuple[Any, ...], named: dict[str, Any]) -> object:
    """The third argument (loop, protocol factory, host); a socket that is open already counts as here."""
    return "localhost" if named.get("sock") is not None else named.get("host", given[2] if len(given) > 2 else "")


def _is_here(host: object) -> bool:
    if not isinstance(host, str) or host in EVERYWHERE or "/" in host or host.startswith("\0"):
        return True  # a path of a Unix socket, or one of no name
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


LOG_WRITER = "log-writer"


@contextmanager
def logs(*, threaded: bool) -> Iterator[None]:
    """Inside, a log that nobody asked for a thread has one, or has none."""
    defaults: Any = Log.__init__.__kwdefaults__
    before = defaults["threaded"]
    defaults["threaded"] = threaded
    try:
        yield
    finally:
        defaults["threaded"] = before


def log_writers() -> int:
    """Threads of logs that nobody has closed."""
    return sum(thread.name == LOG_WRITER for thread in threading.enumerate())
