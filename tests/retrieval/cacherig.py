"""The cache before a Valkey, for its tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from services.contracts.search import Passage
from services.core.breaker import Breaker
from services.retrieval.cache import Cache, CachedResult, CacheKey
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.search_params import SearchParams
from services.runtime.valkey import redis_client
from tests.retrieval.fakes import Lines, metrics, passage
from tests.virtual import run

SECRET = b"a secret of the tests"
CLIENT_TIMEOUT_S = 5.0  # of tests that are about something else: the machine may stall for longer than a timeout
KEY = CacheKey("demo", "How does a weir work?", "model-1")
PARAMS = SearchParams(1.0, 5)
RESULTS = [passage("one", 0.1), passage("two", 0.2)]


class Rig:
    """A cache, the client under it, and what it counted."""

    def __init__(self, url: str, *, timeout_s: float = CLIENT_TIMEOUT_S, **breaker: float) -> None:
        self.metrics: RetrievalMetrics = metrics()
        self.lines = Lines()
        self.client: Redis = redis_client(url, timeout_s=timeout_s, connections=4, socket_timeout_s=CLIENT_TIMEOUT_S)
        self.cache = Cache(
            self.client,
            Breaker(**breaker),  # type: ignore[arg-type]
            timeout_s=timeout_s,
            stale_s=100.0,
            metrics=self.metrics,
            log=self.lines.log,
            secret=SECRET,
            chance=random.Random(1),
            write_timeout_s=CLIENT_TIMEOUT_S,
        )

    def counted(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value("weir_cache_total", {"cache": "exact", "result": result})
        assert value is not None
        return value

    async def put(
        self,
        key: CacheKey = KEY,
        *,
        results: list[Passage] = RESULTS,
        params: SearchParams = PARAMS,
        version: int = 7,
        ttl_s: float = 60.0,
    ) -> None:
        """Store until it is stored: a write that the machine stalls is given up, as it should be."""
        before = self.counted("stored")
        while self.counted("stored") == before:
            await self.try_put(key, results=results, params=params, version=version, ttl_s=ttl_s)

    async def try_put(
        self,
        key: CacheKey = KEY,
        *,
        results: list[Passage] = RESULTS,
        params: SearchParams = PARAMS,
        version: int = 7,
        ttl_s: float = 60.0,
    ) -> None:
        """Store, and wait until it is stored or given up."""
        before = self.counted("stored") + self.counted("not_stored")
        self.cache.put(key, results, params=params, version=version, ttl_s=ttl_s)
        while self.counted("stored") + self.counted("not_stored") == before:
            await asyncio.sleep(0.001)

    async def get(
        self, key: CacheKey = KEY, *, params: SearchParams = PARAMS, version: int | None = 7, ttl_s: float = 60.0
    ) -> CachedResult | None:
        return await self.cache.get(key, params=params, version=version, ttl_s=ttl_s, budget_s=8 * CLIENT_TIMEOUT_S)


@asynccontextmanager
async def rigged(url: str, **breaker: float) -> AsyncIterator[Rig]:
    rig = Rig(url, **breaker)
    try:
        yield rig
    finally:
        await rig.cache.stop()
        rig.lines.log.close()


def without_redis(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    """The scenario in virtual time, where nobody listens."""

    async def main() -> None:
        async with rigged("redis://127.0.0.1:6379/0") as rig:
            await scenario(rig)

    run(main())
