"""The throughput of one core: the governor has one, and its client, which only counts line ends, another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from loadtests.bench.bare import bare
from loadtests.bench.governor.subject import governor
from loadtests.bench.governor.wire import ping, upload
from loadtests.cluster.usage import cores, cpu_s, pinned
from loadtests.report.figure import Figure, median

DEPTH = 128  # pings in flight
PAYLOAD = b"x" * 1024
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """Steps that are written in turn, each after `replies` replies to the one before."""

    name: str
    unit: str
    steps: Sequence[bytes]
    target: float | None = None
    replies: int = 1
    a_connection_each: bool = False
    wanted: bytes = b'"status":"ok"'


PINGS = Load("pings, one at a time", "pings/s", [ping()], 10_000)
UPLOAD = upload(PAYLOAD, job="J_1")
DONE = b'"status":"done"'
LOADS = (
    PINGS,
    Load("pings, pipelined", "pings/s", [ping() * DEPTH], 30_000, replies=DEPTH),
    Load("1 kB uploads, two round trips, one connection", "uploads/s", UPLOAD, 4_000, wanted=DONE),
    Load("1 kB uploads, a new connection each", "uploads/s", UPLOAD, a_connection_each=True, wanted=DONE),
)


class Client(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._at = 0
        self._left = 0
        self._last = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rounds = 0
        self.stopping = load.a_connection_each

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write()

    def data_received(self, data: bytes) -> None:
        self._left -= data.count(b"\n")
        self._last = data
        if self._left:
            return
        self._at += 1
        if self._at == len(self._load.steps):
            self._at = 0
            self.rounds += 1
            if self.stopping:
                self._end()
                return
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the governor closed the connection"))

    def _write(self) -> None:
        self._left = self._load.replies
        self._transport.write(self._load.steps[self._at])

    def _end(self) -> None:
        if self._load.wanted not in self._last:
            self.done.set_exception(RuntimeError(f"not the expected reply: {self._last!r}"))
        else:
            self.done.set_result(None)
        self._transport.abort()


async def drive(load: Load, port: int, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    until, rounds = loop.time() + seconds, 0
    while loop.time() < until:
        _, client = await loop.create_connection(lambda: Client(load), "127.0.0.1", port)
        if not load.a_connection_each:
            await asyncio.wait([client.done], timeout=seconds)
            client.stopping = True
        await client.done
        rounds += client.rounds
    return rounds


async def measure(seconds: float, rounds: int) -> list[Figure]:
    own, others = cores()
    runs = []
    with pinned(others):
        async with governor(cores=own, cap=4) as subject, bare("lines") as (bare_port, _):
            for _ in range(rounds):
                figures = [await _measured(load, subject.port, subject.pid, seconds) for load in LOADS]
                per_s, _ = await _per_s(PINGS, bare_port, seconds)
                note = "a protocol that answers with a fixed line: the limit of this machine's sockets"
                runs.append([*figures, Figure(f"{PINGS.name}, without a governor", per_s, PINGS.unit, note=note)])
    return median(runs)


async def _measured(load: Load, port: int, pid: int, seconds: float) -> Figure:
    cpu_before_s = cpu_s(pid)
    per_s, busy = await _per_s(load, port, seconds)
    server_us = (cpu_s(pid) - cpu_before_s) / (per_s * (seconds + WARM_UP_S)) * 1e6
    note = f"{server_us:.0f} us of the governor's processor time each; client busy {busy:.0%}"
    return Figure(load.name, per_s, load.unit, load.target, note=note)


async def _per_s(load: Load, port: int, seconds: float) -> tuple[float, float]:
    """Replies a second, and the share of a core that this client used."""
    await drive(load, port, WARM_UP_S)
    began, cpu = time.perf_counter(), time.process_time()
    rounds = await drive(load, port, seconds)
    took_s = time.perf_counter() - began
    return rounds * load.replies / took_s, (time.process_time() - cpu) / took_s
