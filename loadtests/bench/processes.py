"""A router of one and of two processes, each pinned to a core, before a stub: answers, rejections, and what they cost.

The client and the stub need a core of their own, and a machine of two cores has none beside two processes. So what
counts is the processor time of a request in all router processes: a core's time divided by it is what a process carries
that has a core to itself. More processes than were measured are an estimate, and the table says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

import msgspec

from loadtests.bench.stand import CONNECTIONS, DIFFERENT, FULL, HELD, HOLD_S, Workers, all_different, chat
from loadtests.bench.stub import stub
from loadtests.cluster.processes import StandError, free_ports, get, started
from loadtests.cluster.stand import NO_RETRIEVAL
from loadtests.cluster.usage import cores, cpu_s, pinned, rss_mb
from loadtests.load.closed import closed_loop, closed_number, hold
from loadtests.report.figure import Figure
from loadtests.report.page import figures_table, table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services import compiled
from services.cli.valkey import EmbeddedValkey

QUICK: Mapping[str, object] = {"seconds": 0.5}
MEASURED, ESTIMATED = (1, 2), (4, 8)
READY_WITHIN_S = 60.0
PAGE = """\
A router of one and of two processes (`ROUTER_PROCESSES`), default settings, before a stub that answers at once.
{connections} connections send again as soon as they are answered; rejections as in [gateways](gateways.md). With two
processes there are an exchange (`EXCHANGE_URL`) and a parent, and each process is pinned to a core; the client and the
stub share the second core with one of them, so *answers* is not what two free cores carry. *A core carries* divides a
second by the processor time of a request in all router processes, the parent included. Code: {code}.

The two processes idle half of the time, since the client cannot keep them busy, and an answer then pays for a process
that wakes. The stub lends no slots. What an answer costs a router that borrows them is counted in
[instructions](instructions.md)."""
ESTIMATE = """\
**An estimate, not measured:** processes with a core each, and clients and workers elsewhere. Rows 1 and 2 are n times
*a core carries* of the measured runs; rows 4 and 8 take the two processes' figure as it is, so they leave out what more
processes cost each other (memory bandwidth, the store), and assume that the kernel spreads connections evenly."""


class Options(msgspec.Struct, frozen=True):
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="duration of each load")] = 8.0


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
    _, other_core = cores()
    with pinned(other_core), store() as exchange_url:
        async with stub() as stub_port:
            for count in MEASURED:
                say(f"processes: {count}")
                several = {"ROUTER_PROCESSES": str(count), "EXCHANGE_URL": exchange_url} if count > 1 else {}
                async with router(stub_port, several) as made:
                    answers[count] = await seen(made, options.seconds)
                    memory = sum(map(rss_mb, made.serving)) / count
                    parent_mb = rss_mb(made.parent) - memory * count  # its children are counted with it
                async with router(stub_port, {**FULL, **several}) as made:
                    refusals[count] = await seen_refusals(made, options.seconds)
                figures += figures_of(count, answers[count], refusals[count], memory, parent_mb)
    code = "compiled" if compiled.in_use() else "Python"
    page = PAGE.format(connections=CONNECTIONS, code=code)
    return Result(
        "Several processes",
        {"processes": figures},
        [page, figures_table(figures), ESTIMATE, estimate(answers, refusals)],
    )


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
    highest = max(MEASURED)
    rows = [
        (
            str(count),
            f"{count * answers[min(count, highest)].a_core_carries:,.0f}",
            f"{count * refusals[min(count, highest)].a_core_carries:,.0f}",
            "from a measured run" if count in MEASURED else "estimate",
        )
        for count in (*MEASURED, *ESTIMATED)
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
async def router(stub_port: int, settings: Mapping[str, str]) -> AsyncIterator[Running]:
    port, metrics_port = free_ports(2)
    count = int(settings.get("ROUTER_PROCESSES", "1"))
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "RETRIEVAL_URL": NO_RETRIEVAL,
            "WORKERS_FILE": str(Workers().written(Path(folder), stub_port)), **settings,
        }  # fmt: skip
        both = cores()[0] | cores()[1]
        async with started(
            "services.router", ready=f"http://127.0.0.1:{port}/health/ready", env=env, cores=both
        ) as made:
            serving = (made.pid,) if count == 1 else await all_ready(metrics_port)
            for index, pid in enumerate(serving):
                pin(pid, index)
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


def pin(pid: int, index: int) -> None:
    """All threads of a process to its core."""
    core = cores()[index % 2]
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), core)


async def seen(made: Running, seconds: float) -> Seen:
    return await measured_load(made, [chat(made.port)], seconds, 200)


async def seen_refusals(made: Running, seconds: float) -> Seen:
    """Each process has its own slot and queue, so requests are held until all of them are full."""
    held = await hold(made.port, [chat(made.port, "hang")] * (8 * HELD * len(made.serving)), HOLD_S)
    following = all_different(made.port)
    try:
        return await measured_load(made, [following() for _ in range(DIFFERENT)], seconds, 429)
    finally:
        for holder in held:
            holder.transport.close()


async def measured_load(made: Running, requests: Sequence[bytes], seconds: float, status: int) -> Seen:
    """About `seconds` of requests in a closed loop, after a quarter of that to warm up, and what they cost."""
    warm = await closed_loop(made.port, cycle(requests).__next__, CONNECTIONS, seconds / 4, warm_up_s=0.0)
    before = [cpu_s(pid) for pid in made.pids]
    results = await closed_number(made.port, requests, CONNECTIONS, max(CONNECTIONS, int(warm.per_second * seconds)))
    spent = [cpu_s(pid) - then for pid, then in zip(made.pids, before, strict=True)]
    results.only(status)
    note = f"processor time by process: {', '.join(f'{one:.2f} s' for one in sorted(spent, reverse=True))}"
    return Seen(results.per_second, 1e6 * sum(spent) / len(results.seconds), note)
