"""What a retrieval carries with it: the question and its times, and what a run for it has found so far."""

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
    """One question: what makes it the same as another, and when its answer is due."""

    request: RetrieveRequest
    key: CacheKey
    params: SearchParams
    version: int | None
    ttl_s: float
    began: float
    embed_by: float
    answer_by: float
    refresh: bool = False
    """Something fresh is there, and is about to expire."""

    @property
    def variant(self) -> str:
        """All that decides a result beside tenant, corpus, question and reach."""
        return f"{self.key.hybrid:d} {self.key.model}"

    def takes(self, kept: CachedResult) -> bool:
        """Whether this is fresh, young enough for this one, too, and was looked for as far."""
        return kept.fresh and kept.age_s < self.ttl_s and kept.params.covers(self.params)


@dataclass(slots=True)
class Stopwatch:
    """How long something took, or has taken so far: whoever walks away can say where the time went."""

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
        """What of it was after that time: whoever joins late has not waited for all of it."""
        if self.began is None:
            return 0.0
        return max(0.0, (self.clock() if self.ended is None else self.ended) - max(self.began, joined))


@dataclass(slots=True)
class SharedSearch:
    """One embedding and one search, which many may wait for: what it found, or why it found nothing."""

    embedding: Stopwatch
    search: Stopwatch
    found: SearchResult | None = None
    near: CachedResult | None = None
    shortfall: Exception = field(default_factory=DeadlineExceeded)
