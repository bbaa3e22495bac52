"""One retrieval, step by step: cache, embed, search, and a fallback when the budget is spent.

    0 ms                     embed_by                answer_by   budget
    |-- cache --|--- embed ---|--------- search ---------|---reserve---|
     <= quarter                  its expected duration     to write the answer

docs/architecture/retrieval.md holds the limits and the order of sources (cache, semantic, db, stale, none). The
fallback is read first, so it costs no time at the end, and a late call is abandoned.

Embedding and search are one shared run, limited by the deadline of the request that started it; a request with more
time may start another. A result or a run serves a request only if it searched at least as far (`search_params.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from services.contracts.search import Passage, RetrieveReply, RetrieveRequest, Source
from services.retrieval.cache import Cache, CachedResult, CacheKey
from services.retrieval.deadline import DeadlineExceeded, with_deadline
from services.retrieval.embedder import Embedder, EmbedderBusy, EmbedderFailed, EmbedderFull
from services.retrieval.embedding_batcher import LatencyEstimate
from services.retrieval.flight import Flights, WaiterTimedOut
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.minilm import Floats
from services.retrieval.pool import DatabaseDown, PoolBusy
from services.retrieval.query_context import QueryContext, SharedSearch, Stopwatch
from services.retrieval.search_params import SearchParams
from services.retrieval.semantic import Semantic
from services.retrieval.store import SearchFailed, SearchResult, Store

SEARCH_SHARE = 0.25  # max share of the budget kept for the search; with more, slow searches might never be tried again
RESERVE_SHARE = 0.1
MAX_RESERVE_S = 0.005
MAX_SHARED = 4096  # shared runs at a time
MAX_REFRESHES = 4  # at a time: they compete with queries that have no fresh result


# Why there is no fresh result, as the reply and the metric name it. `embed_ms` and `search_ms` say where the time went.
SHORTFALLS: dict[type[Exception], str] = {
    DeadlineExceeded: "budget_spent",
    DatabaseDown: "postgres_down",
    PoolBusy: "postgres_busy",
    SearchFailed: "search_failed",
    EmbedderFull: "embedder_full",
    EmbedderBusy: "embedder_busy",
    EmbedderFailed: "embedder_failed",
}

# More time might have avoided these.
TIME_SHORTFALLS = (DeadlineExceeded, EmbedderBusy)


class Retrieval:
    """Answers retrievals. `budget_s` and `ttl_s` are upper bounds in seconds; a request may lower either."""

    def __init__(
        self,
        *,
        embedder: Embedder,
        store: Store,
        cache: Cache,
        metrics: RetrievalMetrics,
        budget_s: float,
        ttl_s: float,
        similar: Semantic | None = None,
    ) -> None:
        self._embedder = embedder
        self._store = store
        self._cache = cache
        self._similar = similar
        self._metrics = metrics
        self._budget_s = budget_s
        self._ttl_s = ttl_s
        self._search_s = LatencyEstimate()
        self._flights: Flights[SharedSearch] = Flights(max_shared=MAX_SHARED, covers=SearchParams.covers)
        self._refreshing: set[asyncio.Task[SharedSearch]] = set()

    async def retrieve(self, request: RetrieveRequest) -> RetrieveReply:
        """The passages for a query within its budget, with their source and, unless that is `db`, the reason."""
        budget_s = min(request.budget_ms / 1000, self._budget_s)
        query = self._context(request, budget_s)
        kept = await self._cache.get(
            query.key, params=query.params, version=query.version, ttl_s=query.ttl_s, budget_s=budget_s
        )
        if kept is not None and kept.fresh:
            if kept.refresh:
                self._refresh(replace(query, params=kept.params, refresh=True))
            return self._reply(query, "cache", kept.results, age_s=kept.age_s, reason="fresh")
        run = await self._shared(query)
        if run.found is not None:
            return self._reply(query, "db", run.found.passages, run)
        if run.near is not None and query.takes(run.near):
            return self._reply(query, "semantic", run.near.results, run, age_s=run.near.age_s, reason="similar")
        reason = SHORTFALLS[type(run.shortfall)]
        self._metrics.shortfalls[reason].inc()
        fallback = kept or run.near
        self._metrics.fallback["miss" if fallback is None else "hit"].inc()
        if fallback is not None:
            return self._reply(query, "stale", fallback.results, run, age_s=fallback.age_s, reason=reason)
        return self._reply(query, "none", [], run, reason=reason)

    def _context(self, request: RetrieveRequest, budget_s: float) -> QueryContext:
        began = asyncio.get_running_loop().time()
        answer_by = began + budget_s - min(budget_s * RESERVE_SHARE, MAX_RESERVE_S)
        return QueryContext(
            request=request,
            key=CacheKey(request.tenant, request.query, self._embedder.fingerprint, request.hybrid),
            params=SearchParams(request.effort, request.top_k),
            version=self._store.corpus_version(request.tenant),
            ttl_s=min(request.cache_ttl_s, self._ttl_s),
            began=began,
            embed_by=answer_by - min(self._search_s.value, budget_s * SEARCH_SHARE),
            answer_by=answer_by,
        )

    def _refresh(self, query: QueryContext) -> None:
        """Search again in the background, within the same budget, because the entry is about to expire."""
        if len(self._refreshing) < MAX_REFRESHES:
            task = asyncio.get_running_loop().create_task(self._shared(query), name="refresh")
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)

    async def _shared(self, query: QueryContext) -> SharedSearch:
        """Join or start the shared run of this query. When the time is up, return what the run has so far."""
        clock = asyncio.get_running_loop().time
        while True:
            mine = SharedSearch(Stopwatch(clock), Stopwatch(clock))
            work = partial(self._run, query, mine)
            try:
                run = await self._flights.join(
                    (query.key, query.ttl_s), work, deadline=query.answer_by, params=query.params, context=mine
                )
            except WaiterTimedOut as timed_out:
                return timed_out.context if isinstance(timed_out.context, SharedSearch) else mine
            except DeadlineExceeded:
                return mine
            if run is mine:
                return run
            self._metrics.joined.inc()
            has_answer = run.found is not None or (run.near is not None and query.takes(run.near))
            if has_answer or not isinstance(run.shortfall, TIME_SHORTFALLS) or clock() >= query.embed_by:
                return run

    async def _run(self, query: QueryContext, run: SharedSearch) -> SharedSearch:
        """Embed, look for a similar question, search, store. A shortfall is a result for all waiters, no exception."""
        try:
            vector = await self._embed(query, run)
            run.near = self._nearest(query, vector)
            if run.near is None or not query.takes(run.near):
                run.found = await self._search(query, run, vector)
                self._keep(query, run, vector, run.found)
        except tuple(SHORTFALLS) as shortfall:
            run.shortfall = shortfall
        return run

    async def _embed(self, query: QueryContext, run: SharedSearch) -> Floats:
        if not self._store.up and self._similar is None:
            raise DatabaseDown  # nothing could use the vector
        with run.embedding:
            embedded = await with_deadline(
                query.answer_by, self._embedder.embed([query.request.query], due=query.embed_by)
            )
        vector: Floats = embedded.vectors[0]
        return vector

    def _nearest(self, query: QueryContext, vector: Floats) -> CachedResult | None:
        if self._similar is None or query.version is None or query.refresh:
            return None
        near = self._similar.nearest(
            query.request.tenant, version=query.version, variant=query.variant, vector=vector, params=query.params
        )
        self._metrics.similar["miss" if near is None else "hit" if query.takes(near) else "stale"].inc()
        return near

    async def _search(self, query: QueryContext, run: SharedSearch, vector: Floats) -> SearchResult:
        request = query.request
        text = request.query if request.hybrid else ""
        try:
            with run.search:
                found = await self._store.search(
                    request.tenant, vector, query.params.depth, query.answer_by,
                    model=self._embedder.fingerprint, query=text, effort=query.params.effort,
                )  # fmt: skip
        finally:
            self._search_s.record(run.search.seconds)
        self._metrics.search_seconds.observe(run.search.seconds)
        return found

    def _keep(self, query: QueryContext, run: SharedSearch, vector: Floats, found: SearchResult) -> None:
        """Store the result for later requests. Without a corpus there is no version to store it under."""
        version, request = found.corpus_version, query.request
        if version is None:
            return
        params = SearchParams(found.effort, query.params.depth)
        cost_s = run.embedding.seconds + run.search.seconds
        self._cache.put(query.key, found.passages, params=params, version=version, ttl_s=query.ttl_s, cost_s=cost_s)
        if self._similar is not None and found.passages and query.ttl_s > 0:
            is_kept = self._similar.keep(
                request.tenant, version=version, variant=query.variant, query=request.query, vector=vector,
                results=found.passages, params=params, ttl_s=query.ttl_s,
            )  # fmt: skip
            self._metrics.similar["stored" if is_kept else "not_stored"].inc()

    def _reply(
        self,
        query: QueryContext,
        source: Source,
        results: list[Passage],
        run: SharedSearch | None = None,
        *,
        age_s: float = 0.0,
        reason: str | None = None,
    ) -> RetrieveReply:
        seconds = asyncio.get_running_loop().time() - query.began
        self._metrics.retrieval_seconds[source].observe(seconds)
        return RetrieveReply(
            source=source,
            results=results[: query.params.depth],
            age_s=round(age_s, 3),
            embed_ms=round(run.embedding.seconds_since(query.began) * 1000, 3) if run else 0.0,
            search_ms=round(run.search.seconds_since(query.began) * 1000, 3) if run else 0.0,
            reason=reason,
        )
