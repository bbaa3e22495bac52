"""A database, a cache, and retrieval services over them: directly, or by way of proxies that can be told to fail.

Everything but the client is a process of its own, and all of them share the machine's cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from loadtests.bench.machine import process, until_ready
from loadtests.bench.retrieval.corpus import fill
from loadtests.bench.vectors import Clustered
from loadtests.cluster.processes import get
from services.cli.ports import free_port
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval.minilm import MiniLM, find_model

BUDGET_MS = 100
POOL = 4
SEED = 1
ASKED_VECTORS = 4096
WELL_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05


class Wire:
    """A fault proxy in a process of its own."""

    def __init__(self, child: asyncio.subprocess.Process, port: int, control: int) -> None:
        self.port = port
        self._child = child
        self._control = control

    @classmethod
    async def to(cls, port: int) -> Wire:
        words = ["-m", "loadtests.faults.proxy", "--to", f"127.0.0.1:{port}"]
        child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        said = (await child.stdout.readline()).decode()  # listening on HOST:PORT, control on HOST:PORT
        ports = [int(word.rpartition(":")[2]) for word in said.replace(",", " ").split() if ":" in word]
        return cls(child, *ports)

    async def become(self, fault: str) -> None:
        """From now on this fault, in the words of its control port."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._control)
        writer.write(f"{fault}\n".encode())
        answer = (await reader.readline()).decode()
        writer.close()
        if not answer.startswith("ok"):
            raise RuntimeError(f"the proxy says: {answer}")

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()


@dataclass(frozen=True)
class Service:
    """A running retrieval service."""

    pid: int
    port: int
    metrics_port: int

    async def is_well(self) -> bool:
        """Ready, with nothing missing and every session with the database back."""
        try:
            ready = await asyncio.to_thread(get, f"http://127.0.0.1:{self.port}/health/ready")
            sessions = _metric(await asyncio.to_thread(get, self._metrics_url), "weir_postgres_connections")
        except OSError:
            return False
        return not msgspec.json.decode(ready)["degraded"] and sessions == POOL

    @property
    def _metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    async def until_well(self) -> float:
        """Seconds until it is well again."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await self.is_well():
            if loop.time() - began > WELL_WITHIN_S:
                raise TimeoutError("the service did not recover")
            await asyncio.sleep(LOOK_EVERY_S)
        return loop.time() - began


class Stand:
    """The servers, and where services find them."""

    def __init__(self, folder: Path, database: EmbeddedPostgres, cache: EmbeddedValkey, wires: tuple[Wire, Wire]):
        self.database = database
        self.cache = cache
        self.database_wire, self.cache_wire = wires
        self.fingerprint = MiniLM(find_model("")).fingerprint
        self._vectors = folder / "vectors.npy"

    async def fill(self, rows: int) -> float:
        """A tenant with so many chunks, and vectors to ask for: the seconds it took."""
        source = Clustered(SEED)
        seconds = await fill(self.database.url, rows, self.fingerprint, source)
        np.save(self._vectors, source.draw(ASKED_VECTORS))
        return seconds

    @asynccontextmanager
    async def service(self, *, by_wire: bool = False, precomputed: bool = False) -> AsyncIterator[Service]:
        """A service of its own: by way of the proxies or directly, with an embedder or with vectors made before."""
        words = ["-m", "services.retrieval"]
        if precomputed:
            words = ["-m", "loadtests.bench.retrieval.service", str(self._vectors), self.fingerprint]
        env = self.environment(by_wire=by_wire)
        async with process(words, env=env) as pid:
            service = Service(pid, int(env["RETRIEVAL_PORT"]), int(env["METRICS_PORT"]))
            await until_ready(f"http://127.0.0.1:{service.port}/health/ready")
            await service.until_well()
            yield service

    def environment(self, *, by_wire: bool = False) -> dict[str, str]:
        """The settings. However few chunks the tenant has, it is searched as a big one is."""
        database, cache = self.database.url, self.cache.url
        if by_wire:
            database = database.replace(f":{self.database.port}/", f":{self.database_wire.port}/")
            cache = cache.replace(f":{self.cache.port}/", f":{self.cache_wire.port}/")
        return {
            "POSTGRES_URL": database, "REDIS_URL": cache, "RETRIEVAL_BUDGET_MS": str(BUDGET_MS),
            "RETRIEVAL_PORT": str(free_port()), "METRICS_PORT": str(free_port()), "POSTGRES_POOL_SIZE": str(POOL),
            "EXACT_SEARCH_CHUNKS": "0",
        }  # fmt: skip

    async def start_database(self) -> None:
        await asyncio.to_thread(self.database.prepare)
        self.database.spawn()
        while not await asyncio.to_thread(self.database.wait_ready):
            self.database.spawn()

    async def start_cache(self) -> None:
        await asyncio.to_thread(self.cache.prepare)
        self.cache.spawn()
        await asyncio.to_thread(self.cache.wait_ready)

    async def connections(self, through: Any) -> int:
        """Connections of services, as the database counts them."""
        return int(await through.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'weir-%'"))


@asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Stand]:
    """Empty servers and healthy proxies."""
    database = EmbeddedPostgres(folder / "postgres", free_port(), log=folder / "postgres.log", durable=False)
    cache = EmbeddedValkey(folder / "valkey", free_port(), log=folder / "valkey.log")
    async with contextlib.AsyncExitStack() as stopping:
        for server in (database, cache):
            server.start()
            stopping.callback(server.stop)
        wires = [await Wire.to(server.port) for server in (database, cache)]
        for wire in wires:
            stopping.push_async_callback(wire.stop)
        yield Stand(folder, database, cache, (wires[0], wires[1]))


def _metric(text: bytes, name: str) -> float:
    families = text_string_to_metric_families(text.decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)
