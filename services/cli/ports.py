"""Who holds a port. All conflicts are reported before anything is started."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from services.cli.errors import LabError

EPHEMERAL_RANGE = range(10_000, 20_000)
"""Ports that `free_port` chooses from. Linux uses source ports from 32,768 on, so one of those could be taken before
the server starts. `loadtests` starts stacks on blocks between the two.
"""


@dataclass(frozen=True, slots=True)
class Port:
    name: str  # what will listen there
    setting: str  # the setting that moves it; empty if it follows another's
    host: str
    number: int


def is_free(host: str, number: int) -> bool:
    """Whether this process could listen there now. A connection in TIME_WAIT does not count, as for the server."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
            probe.listen(1)
        except OSError:
            return False
    return True


def taken(ports: Iterable[Port]) -> list[Port]:
    return [port for port in ports if port.number and not is_free(port.host, port.number)]


def refuse_taken(ports: Iterable[Port], another_way: Callable[[list[Port]], str]) -> None:
    """Raises LabError that names all taken ports. `another_way` returns the command that avoids them."""
    conflicts = taken(ports)
    if conflicts:
        lines = tuple(f"{port.number} ({port.name}): held by {holder(port.number)}" for port in conflicts)
        several = "These ports are" if len(conflicts) > 1 else "This port is"
        raise LabError(f"{several} taken, nothing was started. Choose others: {another_way(conflicts)}", notes=lines)


def holder(number: int) -> str:
    """The process that listens on a port, in words."""
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr and connection.laddr.port == number and connection.pid:
                return f"{_title(connection.pid)} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "a process that cannot be seen from here (another user's, or another container's)"


def _title(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        if "-m" in words[:-1]:
            return f"python -m {words[words.index('-m') + 1]}"
        return process.name()
    except psutil.Error:
        return "a process"


def free_port(host: str = "127.0.0.1") -> int:
    """A free port, below those that the kernel uses for outgoing connections. Raises LabError if there is none."""
    for number in random.sample(EPHEMERAL_RANGE, len(EPHEMERAL_RANGE)):
        if is_free(host, number):
            return number
    raise LabError(f"No port from {EPHEMERAL_RANGE.start} to {EPHEMERAL_RANGE.stop - 1} is free on {host}.")
