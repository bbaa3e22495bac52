"""The state of one retrieval: the query with its deadlines, and what its shared run has found so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from services.contracts.search import RetrieveRequest
from services.retrieval.cache import CachedResult, CacheKey
from services.retrieval.deadline import DeadlineExceeded
from services.retrieval.search_params import SearchParams
from services.retrieval.store import SearchResult


@dataclass(frozen=True, slots=True)
class QueryContext:
    """One query with its cache key, parameters and deadlines. Times are seconds of the loop's clock."""

    request: RetrieveRequest
    key: CacheKey
    params: SearchParams
    version: int | None
    ttl_s: float
    began: float
    embed_by: float
    answer_by: float
    refresh: bool = False
    """The cache holds a fresh entry, which is about to expire."""

    @property
    def variant(self) -> str:
        """Everything that decides a result besides tenant, corpus version, query and search parameters."""
        return f"{self.key.hybrid:d} {self.key.model}"

    def takes(self, kept: CachedResult) -> bool:
        """Whether this result is fresh, younger than this query's TTL, and was searched as far."""
        return kept.fresh and kept.age_s < self.ttl_s and kept.params.covers(self.params)


@dataclass(slots=True)
class Stopwatch:
    """A duration in seconds, readable while it still runs."""

    clock: Callable[[], float]
    began: float | None = None
    ended: float | None = None

    def __enter__(self) -> None:
        self.began = self.clock()

    def __exit__(self, *_: object) -> None:
        self.ended = self.clock()

    @property
    def seconds(self) -> float:
        return self.seconds_since(-math.inf)

    def seconds_since(self, joined: float) -> float:
        """The part of the duration after `joined`: a late joiner has not waited for all of it."""
        if self.began is None:
            return 0.0
        return max(0.0, (self.clock() if self.ended is None else self.ended) - max(self.began, joined))


@dataclass(slots=True)
class SharedSearch:
    """One run of embedding and search that many requests may wait for: its result, or why it has none."""

    embedding: Stopwatch
    search: Stopwatch
    found: SearchResult | None = None
    near: CachedResult | None = None
    shortfall: Exception = field(default_factory=DeadlineExceeded)
