"""What runs: a database behind a proxy, a cache, retrieval, simulated workers; and a router with one ladder or another.

All but the router stay up for the whole of a run: a router that has learned from one load would not meet the next one
as it met the first.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.bench.degradation.corpus import Taken, fill
from loadtests.cluster.processes import Process, free_ports, python
from loadtests.cluster.stand import Server, ready
from loadtests.faults.proxy.proxy import HOST, FaultProxy
from loadtests.paths import ROOT
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

WORKERS = 2
SLOTS = 8
USUAL = {"MAX_BATCH_SIZE": str(SLOTS), "SIM_TIME_SCALE": "0.3"}  # all else by default: the proportions of a small model
PLENTY = {
    "MAX_BATCH_SIZE": "64",
    "SIM_TIME_SCALE": "0.3",
    "SIM_STEP_PER_SEQUENCE_MS": "0.02",
    "SIM_PREFILL_MS_PER_TOKEN": "0.02",
}
DEADLINE_MS = 3000.0
AMPLE_MS, USUAL_MS = 500.0, 100.0  # budgets of a retrieval


@dataclass
class Stand:
    """`database` is the way by which retrieval reaches it, and may be told to fail."""

    folder: Path
    database: FaultProxy
    retrieval: Server
    retrieval_port: int
    workers: dict[str, list[Server]]
    taken: list[Taken]

    @asynccontextmanager
    async def router(self, ladder: str, workers: str, budget_ms: float) -> AsyncIterator[Server]:
        """A new one, before the workers of this kind."""
        port, metrics_port = free_ports(2)
        env = {
            "ROUTER_PORT": str(port),
            "METRICS_PORT": str(metrics_port),
            "WORKERS": ",".join(worker.url for worker in self.workers[workers]),
            "RETRIEVAL_URL": self.retrieval.url,
            "MAX_INFLIGHT": "256",
            "RETRIEVAL_BUDGET_MS": str(budget_ms),
        }
        made = _server(self.folder, "router", ("loadtests.bench.degradation.ladders", ladder), port, metrics_port, env)
        made.process.start()
        try:
            await ready(made)
            yield made
            made.process.check()
        finally:
            await made.process.stop()


@asynccontextmanager
async def stand(rows: int, seed: int) -> AsyncIterator[Stand]:
    """Start everything but a router, and stop it whatever happens."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        ports = iter(free_ports(4 + 4 * WORKERS))
        database = EmbeddedPostgres(folder / "postgres", next(ports), log=folder / "postgres.log", durable=False)
        cache = EmbeddedValkey(folder / "valkey", next(ports), log=folder / "valkey.log")
        for server in (database, cache):
            server.start()  # from this thread, since a child dies with the thread that forked it
            stack.callback(server.stop)
        taken = await fill(database.url, rows, seed)
        proxy = await stack.enter_async_context(FaultProxy(HOST, _port_of(database.url)))
        port = next(ports)
        env = {
            "POSTGRES_URL": database.url.replace(f":{_port_of(database.url)}/", f":{proxy.port}/"),
            "REDIS_URL": cache.url,
            "RETRIEVAL_PORT": str(port),
            "RETRIEVAL_BUDGET_MS": str(AMPLE_MS),
        }
        retrieval = _server(folder, "retrieval", ("services.retrieval",), port, next(ports), env)
        workers = {
            "usual": [_worker(folder, f"usual-{n}", next(ports), next(ports), USUAL) for n in range(WORKERS)],
            "plenty": [_worker(folder, f"plenty-{n}", next(ports), next(ports), PLENTY) for n in range(WORKERS)],
        }
        for each in (retrieval, *workers["usual"], *workers["plenty"]):
            each.process.start()
            stack.push_async_callback(each.process.stop)
        await asyncio.gather(*map(ready, (retrieval, *workers["usual"], *workers["plenty"])))
        yield Stand(folder, proxy, retrieval, port, workers, taken)


def _worker(folder: Path, name: str, port: int, metrics_port: int, kind: Mapping[str, str]) -> Server:
    env = {"WORKER_NAME": name, "WORKER_PORT": str(port), **kind}
    return _server(folder, name, ("services.worker",), port, metrics_port, env)


def _server(
    folder: Path, name: str, command: Sequence[str], port: int, metrics_port: int, env: Mapping[str, str]
) -> Server:
    env = {"PYTHONPATH": str(ROOT), "METRICS_PORT": str(metrics_port), **env}
    process = Process(name, python("-m", *command), env, folder)
    return Server(process, f"http://{HOST}:{port}", f"http://{HOST}:{metrics_port}/metrics")


def _port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
