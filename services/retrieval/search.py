"""A retrieval, read forward: cache, embed, search; and when that does not come in time, what is kept, or nothing.

    0 ms                     embed_by                answer_by   budget
    |-- cache --|--- embed ---|--------- search ---------|---reserve---|
     <= quarter                 as long as it has taken     the fallback, already in hand

A few rules keep the budget. The fallback is fetched first, so it needs no time at the end; a reserve is kept all the
same, for the answer to be written and for a loop that is late. Whatever is late is left behind, never waited for. What
is known to be down is not tried. And a vector is asked for by the time at which a search can still be done with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from services.contracts.search import Passage, RetrieveReply, RetrieveRequest, Source
from services.retrieval.cache import CacheKey, Kept
from services.retrieval.deadline import Late, by
from services.retrieval.embedder import Embedder, EmbedderBusy, EmbedderFailed, EmbedderFull
from services.retrieval.line import Estimate
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.minilm import Floats
from services.retrieval.pool import Busy, Down
from services.retrieval.store import Found, SearchFailed

SEARCH_SHARE = 0.25  # most of the budget that is kept for the search: what is never tried cannot turn out faster
RESERVE_SHARE = 0.1
RESERVE_AT_MOST_S = 0.005


class Searches(Protocol):
    """The store, as a retrieval sees it."""

    @property
    def up(self) -> bool: ...

    def corpus_version(self, tenant: str) -> int | None: ...

    async def search(self, tenant: str, vector: Floats, top_k: int, deadline: float) -> Found: ...


class Keeps(Protocol):
    """The cache, as a retrieval sees it."""

    async def get(self, key: CacheKey, *, version: int | None, ttl_s: float, budget_s: float) -> Kept | None: ...

    def put(self, key: CacheKey, results: list[Passage], *, version: int, ttl_s: float) -> None: ...


@dataclass(slots=True)
class _Timing:
    """When one retrieval began, when its answer is due, and where its time went."""

    began: float
    embed_by: float
    answer_by: float
    embed_ms: float = 0.0
    search_ms: float = 0.0


# Why a fresh result cannot be had, in the words of the reply and of the metric. `embed_ms` and `search_ms` say where
# a spent budget went.
SHORTFALLS: dict[type[Exception], str] = {
    Late: "budget_spent",
    Down: "postgres_down",
    Busy: "postgres_busy",
    SearchFailed: "search_failed",
    EmbedderFull: "embedder_full",
    EmbedderBusy: "embedder_busy",
    EmbedderFailed: "embedder_failed",
}


class Retrieval:
    """`budget_s` and `ttl_s` are upper bounds; a request may ask for less of either."""

    def __init__(
        self,
        *,
        embedder: Embedder,
        store: Searches,
        cache: Keeps,
        metrics: RetrievalMetrics,
        budget_s: float,
        ttl_s: float,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._cache = cache
        self._metrics = metrics
        self._budget_s = budget_s
        self._ttl_s = ttl_s
        self._search_s = Estimate()

    async def retrieve(self, request: RetrieveRequest) -> RetrieveReply:
        """Passages for a query, within its budget, with their source and, where that is not `db`, the reason."""
        budget_s = min(request.budget_ms / 1000, self._budget_s)
        timing = self._timing(budget_s)
        ttl_s = min(request.cache_ttl_s, self._ttl_s)
        key = CacheKey(request.tenant, request.query, request.top_k, self._embedder.fingerprint)

        version = self._store.corpus_version(request.tenant)
        kept = await self._cache.get(key, version=version, ttl_s=ttl_s, budget_s=budget_s)
        if kept is not None and kept.fresh:
            return self._reply("cache", kept.results, timing, age_s=kept.age_s, reason="fresh")
        try:
            vector = await self._embed(request.query, timing)
            found = await self._search(request, vector, timing)
        except tuple(SHORTFALLS) as shortfall:
            reason = SHORTFALLS[type(shortfall)]
            self._metrics.shortfalls[reason].inc()
            if kept is not None:
                return self._reply("stale", kept.results, timing, age_s=kept.age_s, reason=reason)
            return self._reply("none", [], timing, reason=reason)
        if found.corpus_version is not None:
            self._cache.put(key, found.passages, version=found.corpus_version, ttl_s=ttl_s)
        return self._reply("db", found.passages, timing)

    def _timing(self, budget_s: float) -> _Timing:
        began = asyncio.get_running_loop().time()
        answer_by = began + budget_s - min(budget_s * RESERVE_SHARE, RESERVE_AT_MOST_S)
        return _Timing(began, answer_by - min(self._search_s.value, budget_s * SEARCH_SHARE), answer_by)

    async def _embed(self, query: str, timing: _Timing) -> Floats:
        if not self._store.up:
            raise Down  # a vector would be of no use
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            embedded = await by(timing.answer_by, self._embedder.embed([query], due=timing.embed_by))
        finally:
            timing.embed_ms = (loop.time() - began) * 1000
        vector: Floats = embedded.vectors[0]
        return vector

    async def _search(self, request: RetrieveRequest, vector: Floats, timing: _Timing) -> Found:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await self._store.search(request.tenant, vector, request.top_k, timing.answer_by)
        finally:
            timing.search_ms = (loop.time() - began) * 1000
            self._search_s.learn(timing.search_ms / 1000)
        self._metrics.search_seconds.observe(timing.search_ms / 1000)
        return found

    def _reply(
        self, source: Source, results: list[Passage], timing: _Timing, *, age_s: float = 0.0, reason: str | None = None
    ) -> RetrieveReply:
        seconds = asyncio.get_running_loop().time() - timing.began
        self._metrics.retrieval_seconds[source].observe(seconds)
        return RetrieveReply(
            source=source,
            results=results,
            age_s=round(age_s, 3),
            embed_ms=round(timing.embed_ms, 3),
            search_ms=round(timing.search_ms, 3),
            reason=reason,
        )
