"""The exact cache as it should be, in a few lines and in memory: what the real one is compared with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.contracts.search import Passage
from services.retrieval.cache import CachedResult, CacheKey
from services.retrieval.freshness import ttl_jitter
from services.retrieval.search_params import SearchParams


@dataclass
class StoredDocument:
    results: list[Passage]
    params: SearchParams
    version: int
    kept_at: float
    ttl_s: float


@dataclass
class ModelCache:
    """Answers at once, forgets nothing but what is replaced, and never asks anyone to refresh."""

    held: dict[str, StoredDocument] = field(default_factory=dict)
    secret: bytes = b""

    async def get(
        self, key: CacheKey, *, params: SearchParams, version: int | None, ttl_s: float, budget_s: float
    ) -> CachedResult | None:
        held = self.held.get(key.digest(self.secret))
        if held is None:
            return None
        fresh = held.version == version and held.params.covers(params) and self._is_young(key, held, ttl_s)
        return CachedResult(held.results, held.params, _now() - held.kept_at, fresh)

    def put(
        self,
        key: CacheKey,
        results: list[Passage],
        *,
        params: SearchParams,
        version: int,
        ttl_s: float,
        cost_s: float = 0.0,
    ) -> None:
        held = self.held.get(key.digest(self.secret))
        gives_way = held is None or held.version < version or held.params.effort <= params.effort
        if ttl_s > 0 and results and (held is None or gives_way or not self._is_young(key, held, held.ttl_s)):
            self.held[key.digest(self.secret)] = StoredDocument(results, params, version, _now(), ttl_s)

    def _is_young(self, key: CacheKey, held: StoredDocument, ttl_s: float) -> bool:
        return _now() - held.kept_at < min(held.ttl_s, ttl_s) * ttl_jitter(key.digest(self.secret))


def _now() -> float:
    return asyncio.get_running_loop().time()
