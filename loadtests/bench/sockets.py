"""How two processes may share a port: the spread of connections over them, and connections lost as they are replaced.

one shared     both accept from one inherited socket
one each       SO_REUSEPORT, each process opens its own, which closes with it
held           SO_REUSEPORT, a parent holds one for each process, and successors inherit it (as the router does)
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Annotated

import msgspec

from loadtests.cluster.processes import child_environment, free_ports
from loadtests.paths import ROOT
from loadtests.report.figure import Figure
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services.router.processes.parent import public_sockets

QUICK: Mapping[str, object] = {"rounds": 1, "restarts": 2}
SHARED, EACH, HELD = "one shared", "one each", "held"
KINDS = (SHARED, EACH, HELD)
PROCESSES = 2
CONNECTIONS = 32
PAUSE_S = 0.005
"""Between two connections that are opened one after the other."""
CLIENTS = 16
PAGE = """\
{processes} processes on one port with uvloop, and no router. {connections} connections are opened at once, or one
after the other with a pause of {pause:g} ms; the figure is the part of the process that gets most of them, of which the
mean and the largest of {rounds} rounds are shown (0.5: even). Then {clients} clients open a connection for each
request, while the processes are replaced in turn, {restarts} times: a process stops to accept, answers what it has
accepted, ends, and its successor starts. *Lost*: reset or refused. `tcp_migrate_req` is {migrate} here."""


class Options(msgspec.Struct, frozen=True):
    rounds: Annotated[int, msgspec.Meta(ge=1, le=200, description="times that the connections are opened")] = 20
    restarts: Annotated[int, msgspec.Meta(ge=1, le=200, description="processes that are replaced")] = 20


@dataclass
class Port:
    """The processes on one port. `sockets`: those that are inherited, by process."""

    number: int
    sockets: list[socket.socket]
    processes: list[Process] = field(default_factory=list)

    async def start(self, index: int) -> Process:
        fd = self.sockets[index].fileno() if self.sockets else -1
        words = [str(fd)] if self.sockets else ["port", str(self.number)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.bench.acceptor", str(index), *words,
            stdout=PIPE, env=child_environment({"PYTHONPATH": str(ROOT)}), pass_fds=[fd] if self.sockets else [],
        )  # fmt: skip
        assert process.stdout is not None
        await process.stdout.readline()
        return process

    async def replace(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGTERM)
        await self.processes[index].wait()
        self.processes[index] = await self.start(index)


@asynccontextmanager
async def port_of(kind: str) -> AsyncIterator[Port]:
    (number,) = free_ports(1)
    held = [] if kind == EACH else public_sockets("127.0.0.1", number, PROCESSES if kind == HELD else 1)
    made = Port(number, held * (1 if kind == HELD else PROCESSES))
    try:
        for index in range(PROCESSES):
            made.processes.append(await made.start(index))
        yield made
    finally:
        for process in made.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for sock in held:
            sock.close()


async def measure(options: Options, say: Say) -> Result:
    found: list[Figure] = []
    for kind in KINDS:
        async with port_of(kind) as made:
            say(f"{kind}: the spread")
            for name, pause_s in (("at once", 0.0), ("one after the other", PAUSE_S)):
                parts = [await largest_part(made.number, pause_s) for _ in range(options.rounds)]
                note = f"largest {max(parts):.2f}"
                found.append(Figure(f"{kind}: opened {name}", sum(parts) / len(parts), note=note))
            say(f"{kind}: replaced")
            found += list(await lost(made, kind, options.restarts))
    page = PAGE.format(
        processes=PROCESSES, connections=CONNECTIONS, pause=1000 * PAUSE_S, rounds=options.rounds, clients=CLIENTS,
        restarts=options.restarts, migrate=migrates(),
    )  # fmt: skip
    return Result("Two processes on one port", {"sockets": found}, [page, figures_table(found)])


def migrates() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_migrate_req", encoding="ascii") as file:
        return file.read().strip()
    return "unknown"


async def largest_part(port: int, pause_s: float) -> float:
    """Of the connections, that of the process that got most."""
    opened = []
    if pause_s:
        for _ in range(CONNECTIONS):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            await asyncio.sleep(pause_s)
    else:
        opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)))
    names: dict[bytes, int] = {}
    for reader, writer in opened:
        writer.write(b"?")
        name = await reader.readexactly(1)
        names[name] = names.get(name, 0) + 1
    for _, writer in opened:
        writer.close()
    return max(names.values()) / CONNECTIONS


@dataclass
class Counted:
    asked: int = 0
    lost: int = 0
    longest_s: float = 0.0
    over: bool = False


async def lost(made: Port, kind: str, restarts: int) -> Iterator[Figure]:
    counted = Counted()

    async def client() -> None:
        while not counted.over:
            began = perf_counter()
            counted.asked += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", made.number)
                writer.write(b"?")
                await reader.readexactly(1)
                writer.close()
            except (OSError, EOFError):
                counted.lost += 1
            counted.longest_s = max(counted.longest_s, perf_counter() - began)

    clients = asyncio.gather(*(client() for _ in range(CLIENTS)))
    for number in range(restarts):
        await made.replace(number % PROCESSES)
    counted.over = True
    await clients
    return iter((
        Figure(f"{kind}: lost in {restarts} restarts", counted.lost, note=f"of {counted.asked:,}"),
        Figure(f"{kind}: longest wait for an answer", 1000 * counted.longest_s, "ms"),
    ))  # fmt: skip
