"""What a look-up in the semantic cache costs, by how many questions of a tenant are kept, and what Redis would add.

A cache that replicas share lies in Redis. Without vector search there, a look-up would fetch all vectors of the tenant;
with it, it would still be a round trip. Both are measured at the asking end, as processor time of the client: what the
server and the wire take comes on top.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import numpy as np

from loadtests.bench.stores import valkey
from services.cli.valkey import program
from services.contracts.search import Passage
from services.retrieval.cache import redis_client
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.reach import Reach
from services.retrieval.semantic import Semantic

SIZES = (1_000, 10_000)
LOOKUPS = 300
PLENTY_BYTES = 1 << 31
REACH = Reach(1.0, 5)


def vectors(count: int) -> Floats:
    """Unit vectors in random directions."""
    drawn: Floats = np.random.default_rng(1).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return drawn


def lookup_us(entries: int) -> float:
    """Microseconds of processor time of a look-up, the median."""
    cache = Semantic(threshold=0.1, stale_s=60.0, tenant_entries=entries, most_bytes=PLENTY_BYTES, clock=lambda: 0.0)
    results = [Passage("guide.md#0", "guide.md", 1, "text", 0.5)]
    kept = vectors(entries)
    for number, vector in enumerate(kept):
        cache.keep(
            "demo", version=1, params="", query=str(number), vector=vector, results=results, reach=REACH, ttl_s=60.0
        )
    took = []
    for vector in kept[:LOOKUPS]:
        began = time.thread_time_ns()
        found = cache.nearest("demo", version=1, params="", vector=vector, reach=REACH)
        took.append((time.thread_time_ns() - began) / 1000)
        assert found is not None
    return statistics.median(took)


def redis_us() -> dict[str, float]:
    """The same of one round trip to Redis, and of one that fetches the vectors; nothing where there is no Valkey."""
    if program() is None:
        return {}
    with valkey() as server:
        return asyncio.run(_round_trips(server.url))


async def _round_trips(url: str) -> dict[str, float]:
    client = redis_client(url, timeout_s=5.0, connections=1)
    most = SIZES[0]
    await client.set("few", b"x" * 64)
    await client.set("vectors", vectors(most).tobytes())
    try:
        return {
            "one round trip to Redis, for 64 bytes": await _median_us(lambda: client.get("few")),
            f"one that fetches {most:,} vectors": await _median_us(lambda: client.get("vectors")),
        }
    finally:
        await client.aclose()


async def _median_us(ask: Callable[[], Awaitable[object]]) -> float:
    took = []
    for _ in range(LOOKUPS):
        began = time.thread_time_ns()
        assert await ask()
        took.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(took)
