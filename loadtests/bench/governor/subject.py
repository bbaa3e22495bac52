"""A governor with default settings in its own process, with the stub as its backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Set
from dataclasses import dataclass

from loadtests.cluster.books import total
from loadtests.cluster.processes import free_ports, get, started

LEAVES_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Subject:
    pid: int
    port: int
    metrics_port: int

    async def metric(self, *names: str) -> list[float]:
        page = (await asyncio.to_thread(get, f"http://127.0.0.1:{self.metrics_port}/metrics")).decode()
        return [total(page, name) for name in names]


@contextlib.asynccontextmanager
async def governor(
    *, cores: Set[int] = frozenset(), cap: int = 1, stub_ms: float = 0, **env: str
) -> AsyncIterator[Subject]:
    """Started and stopped with the block. Raises RuntimeError if it does not exit with status 0."""
    port, metrics_port = free_ports(2)
    settings = {
        "GOVERNOR_BACKEND": "stub", "GOVERNOR_STUB_MS": f"{stub_ms:g}", "GOVERNOR_MAX_INFLIGHT": str(cap),
        "GOVERNOR_PORT": str(port), "METRICS_PORT": str(metrics_port), **env,
    }  # fmt: skip
    ready = f"http://127.0.0.1:{metrics_port}/metrics"
    async with started("services.governor", ready=ready, env=settings, cores=cores) as process:
        yield Subject(process.pid, port, metrics_port)
        if (status := await process.leave(LEAVES_WITHIN_S)) != 0:
            raise RuntimeError(f"the governor exited with {status}: {process.last_words()}")
