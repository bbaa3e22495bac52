"""Routers in several states of observation, side by side before one stub, and exactly what a request costs each.

Cost is the time that the kernel says the process had a processor, all its threads together, in nanoseconds
(/proc/PID/task/*/schedstat): who else is busy on the machine changes it little. Routers share one core and take turns;
the stub and the clients have another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from loadtests.bench.client import Tally, connect, post
from loadtests.bench.machine import cores, cpu_s, pinned, process, until_ready
from loadtests.bench.router import CONNECTIONS
from loadtests.bench.stub import workers_file
from services.cli.ports import free_port

TENANTS = 16
EXPORT_S = 1.3


@dataclass
class Router:
    """One of them, and what was measured."""

    name: str
    pid: int
    port: int
    metrics_port: int
    settle_s: float = 0.0
    """After a load: until what it exports is out."""
    cpu_us: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Variant:
    """How a router is observed: which parts are silent, and which settings it has."""

    silent: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def standing(variants: Mapping[str, Variant], folder: Path) -> AsyncIterator[list[Router]]:
    """All of them, ready."""
    router_core, other_core = cores()
    stub_port = free_port()
    workers = workers_file(folder, stub_port)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(pinned(other_core))
        await stack.enter_async_context(process(["-m", "loadtests.bench.stub", str(stub_port)], other_core))
        routers: list[Router] = []
        for name, variant in variants.items():
            port, metrics_port = free_port(), free_port()
            env = {
                "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "WORKERS_FILE": str(workers),
                "RETRIEVAL_URL": "http://127.0.0.1:1", "PROBE_INTERVAL_S": "5", **variant.settings,
            }  # fmt: skip
            log = stack.enter_context((folder / f"{len(routers)}.log").open("wb"))
            words = ["-m", "loadtests.bench.observing.subject", ",".join(variant.silent)]
            pid = await stack.enter_async_context(process(words, router_core, env, log))
            await until_ready(f"http://127.0.0.1:{port}/health/ready")
            routers.append(Router(name, pid, port, metrics_port, EXPORT_S if variant.settings else 0.0))
        yield routers


def questions(port: int) -> Sequence[bytes]:
    """A chat request of each of sixteen tenants."""
    messages = [{"role": "user", "content": "What does a weir do to a river that is in flood, and why?"}]
    body = json.dumps({"model": "fast", "messages": messages, "max_tokens": 64}, separators=(",", ":")).encode()
    plain = post(port, "/v1/chat/completions", body)
    return [plain.replace(b"\r\nhost:", b"\r\nx-tenant: tenant-%d\r\nhost:" % number, 1) for number in range(TENANTS)]


async def ask(router: Router, times: int) -> tuple[float, float]:
    """So many requests over a few connections: microseconds of processor time for each, and how many a second."""
    tally = Tally()
    clients = [await connect(router.port, tally) for _ in range(CONNECTIONS)]
    turn = itertools.cycle(questions(router.port))
    left = itertools.count()
    before, began = cpu_s(router.pid), perf_counter()

    async def one(at: int) -> None:
        while next(left) < times:
            await clients[at].ask(next(turn))

    await asyncio.gather(*map(one, range(CONNECTIONS)))
    wall_s = perf_counter() - began
    await asyncio.sleep(router.settle_s)
    spent_s = cpu_s(router.pid) - before
    for client in clients:
        client.transport.close()
    if set(tally.statuses) != {200}:
        raise RuntimeError(f"expected answers only, got {tally.statuses}")
    answered = tally.statuses[200]
    return spent_s / answered * 1e6, answered / wall_s
