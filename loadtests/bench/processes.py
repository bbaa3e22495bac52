"""A router of one process and of several, each pinned to a core, before stubs: answers, rejections, and their cost.

Clients and stubs need cores of their own, and a machine of two cores has none beside two processes. So what counts is
the processor time of a request in all router processes: a core's time divided by it is what a process carries that has
a core to itself. More processes than half of the cores are an estimate, and the table says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from loadtests.bench.stand import CONNECTIONS, DIFFERENT, FULL, HELD, HOLD_S, Workers, all_different, chat
from loadtests.bench.stub import stub
from loadtests.cluster.processes import StandError, free_ports, get, started
from loadtests.cluster.stand import NO_RETRIEVAL
from loadtests.cluster.usage import cpu_s, pinned, rss_mb
from loadtests.load.closed import hold
from loadtests.load.closed_processes import Clients, clients
from loadtests.report.figure import Figure
from loadtests.report.page import figures_table, table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services import compiled
from services.cli.valkey import EmbeddedValkey

QUICK: Mapping[str, object] = {"seconds": 0.5}
COUNTS = (1, 2, 4, 8)
ALWAYS = 2
"""Numbers of processes up to this are measured on any machine."""
WARM_UP = 2_000
"""Requests before those that are measured, and from which their number is found."""
READY_WITHIN_S = 60.0
PAGE = """\
A router of one process and of several (`ROUTER_PROCESSES`), default settings, before stubs that answer at once.
{connections} connections for each process send again as soon as they are answered; rejections as in
[gateways](gateways.md). With several processes there are an exchange (`EXCHANGE_URL`) and a parent, and each process is
pinned to a core. *A core carries* divides a second by the processor time of a request in all router processes, the
parent included. Code: {code}.

{others}

The stubs lend no slots. What an answer costs a router that borrows them is counted in
[instructions](instructions.md)."""
SHARED = """\
Clients and the stub share the second core with a process, so *answers* is not what two free cores carry: the two
processes idle for a part of the time (notes), since the client cannot keep them busy, and an answer then pays for a
process that wakes."""
SEPARATE = """\
Clients and stubs have cores of their own, up to {room} for {count} processes; how busy the processes were is in the
notes."""
ESTIMATE = """\
**From what a core carries:** processes with a core each, and clients and workers elsewhere. A measured row is n times
*a core carries* of its run. An estimate takes the figure of the most processes that were measured as it is, so it
leaves out what more processes cost each other (memory bandwidth, the store), and assumes that the kernel spreads
connections evenly."""


class Options(msgspec.Struct, frozen=True):
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="duration of each load")] = 8.0


class Layout(NamedTuple):
    """Cores of the router's processes, of the stubs and of the clients, one process on each."""

    routers: tuple[int, ...]
    stubs: tuple[int, ...]
    clients: tuple[int, ...]


def layout(have: Sequence[int], count: int) -> Layout:
    """Stubs and clients get up to two cores more than twice the processes, or share the last core."""
    routers = tuple(have[place % len(have)] for place in range(count))
    others = tuple(have[count:][: 2 * count + 2]) or (have[-1],)
    return Layout(routers, others[::2], others[1::2] or others[:1])


def measured(cores: int) -> tuple[int, ...]:
    """The numbers of processes that leave as many cores to the others, and always the first two."""
    return tuple(count for count in COUNTS if count <= max(ALWAYS, cores // 2))


@dataclass(frozen=True)
class Running:
    """A router: its port, the process that was started, and those that serve."""

    port: int
    parent: int
    serving: tuple[int, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple({self.parent, *self.serving})


@dataclass(frozen=True)
class Seen:
    per_s: float
    cpu_us: float
    note: str

    @property
    def a_core_carries(self) -> float:
        return 1e6 / self.cpu_us


async def measure(options: Options, say: Say) -> Result:
    figures: list[Figure] = []
    answers: dict[int, Seen] = {}
    refusals: dict[int, Seen] = {}
    have = sorted(os.sched_getaffinity(0))
    with store() as exchange_url:
        for count in measured(len(have)):
            say(f"processes: {count}")
            several = {"ROUTER_PROCESSES": str(count), "EXCHANGE_URL": exchange_url} if count > 1 else {}
            places = layout(have, count)
            with pinned({places.clients[-1]}), clients(places.clients, CONNECTIONS * count) as sending:
                async with stubs(places.stubs) as ports:
                    async with router(ports, several, places.routers) as made:
                        answers[count] = await seen(made, sending, options.seconds)
                        memory = sum(map(rss_mb, made.serving)) / count
                        parent_mb = rss_mb(made.parent) - memory * count  # its children are counted with it
                    async with router(ports, {**FULL, **several}, places.routers) as made:
                        refusals[count] = await seen_refusals(made, sending, options.seconds)
            figures += figures_of(count, answers[count], refusals[count], memory, parent_mb)
    blocks = [introduction(have), figures_table(figures), ESTIMATE, estimate(answers, refusals)]
    return Result("Several processes", {"processes": figures}, blocks)


def introduction(have: Sequence[int]) -> str:
    code = "compiled" if compiled.in_use() else "Python"
    highest = measured(len(have))[-1]
    routers, stubs, senders = map(frozenset, layout(have, highest))
    others = stubs | senders
    where = SHARED if others & routers else SEPARATE.format(room=len(others), count=highest)
    return PAGE.format(connections=CONNECTIONS, code=code, others=where)


def figures_of(count: int, answers: Seen, refusals: Seen, memory_mb: float, parent_mb: float) -> Iterator[Figure]:
    of = f"{count} process" if count == 1 else f"{count} processes"
    yield Figure(f"{of}: answers", answers.per_s, "requests/s", note=answers.note)
    yield Figure(f"{of}: processor time of an answer", answers.cpu_us, "us")
    yield Figure(f"{of}: a core carries, answers", answers.a_core_carries, "requests/s")
    yield Figure(f"{of}: rejections", refusals.per_s, "requests/s", note=refusals.note)
    yield Figure(f"{of}: processor time of a rejection", refusals.cpu_us, "us")
    yield Figure(f"{of}: a core carries, rejections", refusals.a_core_carries, "requests/s")
    yield Figure(f"{of}: memory of a process", memory_mb, "MB")
    if count > 1:
        yield Figure(f"{of}: memory of the parent", parent_mb, "MB")


def estimate(answers: Mapping[int, Seen], refusals: Mapping[int, Seen]) -> Iterator[str]:
    highest = max(answers)
    rows = [
        (
            str(count),
            f"{count * answers[min(count, highest)].a_core_carries:,.0f}",
            f"{count * refusals[min(count, highest)].a_core_carries:,.0f}",
            "from a measured run" if count in answers else "estimate",
        )
        for count in COUNTS
    ]
    yield from table(("Processes and cores", "Answers/s", "Rejections/s", ""), rows)


@contextlib.contextmanager
def store() -> Iterator[str]:
    """A Valkey for the exchange. Yields its address."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        valkey = EmbeddedValkey(Path(folder) / "valkey", port, log=Path(folder) / "valkey.log")
        valkey.start()
        try:
            yield valkey.url
        finally:
            valkey.stop()


@asynccontextmanager
async def stubs(cores: Sequence[int]) -> AsyncIterator[tuple[int, ...]]:
    """A stub on each of these cores. Yields their ports."""
    async with AsyncExitStack() as stack:
        yield tuple([await stack.enter_async_context(stub(frozenset({core}))) for core in cores])


@asynccontextmanager
async def router(
    stub_ports: Sequence[int], settings: Mapping[str, str], cores: Sequence[int]
) -> AsyncIterator[Running]:
    port, metrics_port = free_ports(2)
    count = int(settings.get("ROUTER_PROCESSES", "1"))
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "RETRIEVAL_URL": NO_RETRIEVAL,
            "WORKERS_FILE": str(Workers(also=tuple(stub_ports[1:])).written(Path(folder), stub_ports[0])), **settings,
        }  # fmt: skip
        ready = f"http://127.0.0.1:{port}/health/ready"
        async with started("services.router", ready=ready, env=env, cores=frozenset(cores)) as made:
            serving = (made.pid,) if count == 1 else await all_ready(metrics_port)
            for pid, core in zip(serving, cores, strict=True):
                pin(pid, core)
            yield Running(port, made.pid, serving)


async def all_ready(metrics_port: int) -> tuple[int, ...]:
    """The pids of the processes once all are ready. Raises StandError."""
    for _ in range(int(READY_WITHIN_S / 0.1)):
        with contextlib.suppress(OSError):
            found = json.loads(await asyncio.to_thread(get, f"http://127.0.0.1:{metrics_port}/admin/state"))[
                "processes"
            ]
            if all(one["state"] == "ready" for one in found):
                return tuple(one["pid"] for one in found)
        await asyncio.sleep(0.1)
    raise StandError(f"the processes were not ready within {READY_WITHIN_S:g} s")


def pin(pid: int, core: int) -> None:
    """All threads of a process to its core."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), {core})


async def seen(made: Running, sending: Clients, seconds: float) -> Seen:
    return await measured_load(made, sending, [chat(made.port)], seconds, 200)


async def seen_refusals(made: Running, sending: Clients, seconds: float) -> Seen:
    """Each process has its own slot and queue, so requests are held until all of them are full."""
    held = await hold(made.port, [chat(made.port, "hang")] * (8 * HELD * len(made.serving)), HOLD_S)
    following = all_different(made.port)
    try:
        return await measured_load(made, sending, [following() for _ in range(DIFFERENT)], seconds, 429)
    finally:
        for holder in held:
            holder.transport.close()


async def measured_load(
    made: Running, sending: Clients, requests: Sequence[bytes], seconds: float, status: int
) -> Seen:
    """About `seconds` of requests in a closed loop, after two short ones to warm up, and what they cost."""
    await sending.send(made.port, requests, WARM_UP)  # the client processes start with it
    warm = await sending.send(made.port, requests, WARM_UP)
    before = [cpu_s(pid) for pid in made.pids]
    results = await sending.send(made.port, requests, max(WARM_UP, int(warm.per_second * seconds)))
    spent = [cpu_s(pid) - then for pid, then in zip(made.pids, before, strict=True)]
    results.only(status)
    busy = sum(spent) / results.wall_s / len(made.serving)
    each = ", ".join(f"{one:.2f} s" for one in sorted(spent, reverse=True))
    note = f"processor time by process: {each}; {busy:.0%} of their cores"
    return Seen(results.per_second, 1e6 * sum(spent) / len(results.seconds), note)
