"""Makes the network, enters it, and removes it at the end, also after Ctrl-C.

What a killed run left is removed at the next start: its processes have ended with it, so namespaces of ours in which
something still runs belong to a run that goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from loadtests.cluster.processes import StandError
from loadtests.runs.many.addresses import PREFIX, Net, Node
from loadtests.runs.many.commands import Command, making, removing

TOOLS = ("ip", "iptables")
CLONE_NEWNET = 0x40000000
COMMAND_WITHIN_S = 10.0


def lacking() -> str:
    """What keeps this machine from making namespaces, in one line; empty if nothing does."""
    if sys.platform != "linux":
        return "network namespaces are a feature of Linux"
    if os.geteuid() != 0:
        return "network namespaces need root: sudo make many"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install iproute2 iptables"
    return _refused()


def _refused() -> str:
    """Why a container's root may not do it; empty if it may. Of a check that was killed `clear` removes the rest."""
    tried = f"{PREFIX}try-{os.getpid()}"
    try:
        do(("ip", "netns", "add", tried))
    except StandError as error:
        return str(error)
    try:
        do(("ip", "netns", "exec", tried, "iptables", "-w", "-S"))
    except StandError as error:
        return str(error)
    finally:
        do(("ip", "netns", "delete", tried))
    return ""


def do(command: Command) -> str:
    """Run a command and return what it prints. Raises StandError if it fails or takes too long.

    It has a session of its own: Ctrl-C must not end the command that removes something.
    """
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        raise StandError(f"`{' '.join(command)}` has not ended within {COMMAND_WITHIN_S:g} s") from None
    if ended.returncode != 0:
        raise StandError(f"`{' '.join(command)}` failed: {(ended.stderr or ended.stdout).strip()}")
    return ended.stdout


async def do_all(commands: Iterable[Command]) -> None:
    """Run commands in turn beside the event loop. Raises StandError for the first that fails."""
    for command in commands:
        await asyncio.to_thread(do, command)


def ours() -> list[str]:
    """The namespaces with our prefix."""
    names = (line.split()[0] for line in do(("ip", "netns", "list")).splitlines() if line.strip())
    return [name for name in names if name.startswith(PREFIX)]


def clear() -> None:
    """Remove what a killed run left. Raises StandError while another run goes on."""
    left = ours()
    busy = [name for name in left if do(("ip", "netns", "pids", name)).split()]
    if busy:
        raise StandError(f"another run goes on: processes are in {', '.join(busy)}")
    _remove(left)


def _remove(names: Iterable[str]) -> None:
    """Remove all that can be removed."""
    for command in removing(list(names)):
        with contextlib.suppress(StandError):
            do(command)


@contextmanager
def made(net: Net) -> Iterator[None]:
    """The network, until the block ends. Raises StandError if it cannot be made."""
    clear()
    try:
        for command in making(net):
            do(command)
        yield
    finally:
        _remove(ours())


@contextmanager
def entered(node: Node) -> Iterator[None]:
    """This thread's new sockets, and those of threads that it starts, are in the node's namespace."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(f"/run/netns/{node.namespace}", os.O_RDONLY)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)


def _enter(namespace: int) -> None:
    """Python has `os.setns` from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise StandError(f"the namespace cannot be entered: {os.strerror(number)}")
