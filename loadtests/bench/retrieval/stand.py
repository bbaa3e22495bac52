"""A database, a cache, and retrieval services over them: directly, or through wires that inject faults.

Every part but the client is a separate process, and all share the machine's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from loadtests.bench.retrieval.corpus import fill
from loadtests.bench.vectors import Clustered
from loadtests.cluster.books import total
from loadtests.cluster.embedded import postgres, valkey
from loadtests.cluster.parts import Store
from loadtests.cluster.processes import free_ports, get, started
from loadtests.faults.wires import Wire
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval.minilm import MiniLM, find_model

BUDGET_MS = 100
POOL = 4
SEED = 1
ASKED_VECTORS = 4096
WELL_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Service:
    pid: int
    port: int
    metrics_port: int

    async def is_well(self) -> bool:
        """Whether it is ready, not degraded, with all its database connections open."""
        try:
            ready = await asyncio.to_thread(get, f"http://127.0.0.1:{self.port}/health/ready")
            metrics = await asyncio.to_thread(get, f"http://127.0.0.1:{self.metrics_port}/metrics")
        except OSError:
            return False
        return (
            not msgspec.json.decode(ready)["degraded"] and total(metrics.decode(), "weir_postgres_connections") == POOL
        )

    async def until_well(self) -> float:
        """Waits until it is well. Returns the seconds. Raises TimeoutError after WELL_WITHIN_S."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await self.is_well():
            if loop.time() - began > WELL_WITHIN_S:
                raise TimeoutError("the service did not recover")
            await asyncio.sleep(LOOK_EVERY_S)
        return loop.time() - began


class Stand:
    def __init__(
        self, folder: Path, database: EmbeddedPostgres, cache: EmbeddedValkey, database_wire: Wire, cache_wire: Wire
    ) -> None:
        self.postgres, self.valkey = database, cache
        self.database, self.cache = Store("PostgreSQL", database), Store("Redis", cache)
        self.database_wire, self.cache_wire = database_wire, cache_wire
        self.fingerprint = MiniLM(find_model("")).fingerprint
        self._vectors = folder / "vectors.npy"

    async def fill(self, rows: int) -> float:
        """Stores a tenant with `rows` chunks, and vectors for questions. Returns the seconds it took."""
        source = Clustered(SEED)
        seconds = await fill(self.postgres.url, rows, self.fingerprint, source)
        np.save(self._vectors, source.draw(ASKED_VECTORS))
        return seconds

    @asynccontextmanager
    async def service(self, *, by_wire: bool = False, precomputed: bool = False) -> AsyncIterator[Service]:
        """A running service: through the wires or directly, with its embedder or with precomputed vectors."""
        command = ["services.retrieval"]
        if precomputed:
            command = ["loadtests.bench.retrieval.service", str(self._vectors), self.fingerprint]
        env = self.environment(by_wire=by_wire)
        port, metrics_port = int(env["RETRIEVAL_PORT"]), int(env["METRICS_PORT"])
        async with started(*command, ready=f"http://127.0.0.1:{port}/health/ready", env=env) as process:
            service = Service(process.pid, port, metrics_port)
            await service.until_well()
            yield service

    def environment(self, *, by_wire: bool = False) -> dict[str, str]:
        """The settings. The tenant is searched through the graph at any size."""
        database, cache = self.postgres.url, self.valkey.url
        if by_wire:
            database = database.replace(f":{self.postgres.port}/", f":{self.database_wire.port}/")
            cache = cache.replace(f":{self.valkey.port}/", f":{self.cache_wire.port}/")
        port, metrics_port = map(str, free_ports(2))
        return {
            "POSTGRES_URL": database, "REDIS_URL": cache, "RETRIEVAL_BUDGET_MS": str(BUDGET_MS),
            "RETRIEVAL_PORT": port, "METRICS_PORT": metrics_port, "POSTGRES_POOL_SIZE": str(POOL),
            "EXACT_SEARCH_CHUNKS": "0",
        }  # fmt: skip


@asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Stand]:
    async with contextlib.AsyncExitStack() as stack:
        database, cache = stack.enter_context(postgres()), stack.enter_context(valkey())
        ports = iter(free_ports(4))
        wires = [Wire(name, server.port, ports, folder) for name, server in (("database", database), ("cache", cache))]
        for wire in wires:
            wire.process.start()
            stack.push_async_callback(wire.process.stop)
            await wire.ready()
        yield Stand(folder, database, cache, *wires)
