"""Stand-ins for embedder, store, cache and connections, on any loop, virtual ones included."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from prometheus_client import CollectorRegistry

from services.contracts.search import Passage
from services.retrieval.cache import CachedResult, CacheKey
from services.retrieval.embedder import Embedded
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.minilm import Floats
from services.retrieval.search_params import SearchParams
from services.retrieval.store import SearchResult
from services.runtime.log import Log

VECTOR = np.zeros(384, np.float32)
ALL = SearchParams(1.0, 50)


def passage(text: str = "text", distance: float = 0.5) -> Passage:
    return Passage("guide.md#0", "guide.md", 1, text, distance)


def metrics() -> RetrievalMetrics:
    return RetrievalMetrics(CollectorRegistry())


class Lines:
    """A log, and what it said."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        self.log = Log("test", stream=self._stream)

    def read(self) -> str:
        """Everything logged; the log is closed by it."""
        self.log.close()
        return self._stream.getvalue().decode()


@dataclass
class FakeEmbedder:
    """Takes `takes_s`, then gives a vector or raises."""

    takes_s: float = 0.005
    raises: Exception | None = None
    name: str = "fake"
    fingerprint: str = "fake-1"
    asked: int = 0
    dues: list[float | None] = field(default_factory=list)

    async def embed(self, texts: Sequence[str], *, due: float | None = None) -> Embedded:
        self.asked += 1
        self.dues.append(due)
        await asyncio.sleep(self.takes_s)
        if self.raises is not None:
            raise self.raises
        return Embedded(np.stack([VECTOR for _ in texts]), len(texts))


@dataclass
class FakeStore:
    """Takes `takes_s`, then finds or raises. `is_exact`: it has no use for less than all effort."""

    takes_s: float = 0.002
    is_exact: bool = True
    raises: Exception | None = None
    up: bool = True
    version: int | None = 7
    found: list[Passage] = field(default_factory=lambda: [passage("from the database")])
    asked: int = 0
    searches: list[tuple[str, int, str, float]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)

    def corpus_version(self, tenant: str) -> int | None:
        return self.version

    async def search(
        self,
        tenant: str,
        vector: Floats,
        top_k: int,
        deadline: float,
        *,
        model: str,
        query: str = "",
        effort: float = 1.0,
    ) -> SearchResult:
        self.asked += 1
        self.searches.append((tenant, top_k, query, effort))
        self.models.add(model)
        await asyncio.sleep(self.takes_s)
        if self.raises is not None:
            raise self.raises
        decided = 1.0 if self.is_exact else effort
        return SearchResult(self.passages(tenant, top_k, query, decided), self.version, decided)

    def passages(self, tenant: str, top_k: int, query: str, effort: float) -> list[Passage]:
        """What is found; a store that tells whose search it was says it here."""
        return self.found


@dataclass
class FakeCache:
    """Holds one answer for every key, and remembers what it was given."""

    kept: CachedResult | None = None
    takes_s: float = 0.001
    put_in: list[tuple[CacheKey, int, float]] = field(default_factory=list)
    searched_with: list[SearchParams] = field(default_factory=list)
    costs_s: list[float] = field(default_factory=list)

    async def get(
        self, key: CacheKey, *, params: SearchParams, version: int | None, ttl_s: float, budget_s: float
    ) -> CachedResult | None:
        await asyncio.sleep(self.takes_s)
        return self.kept

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
        self.searched_with.append(params)
        self.costs_s.append(cost_s)
        self.put_in.append((key, version, ttl_s))


class FakeConnection:
    """A connection that is open until someone ends it, and that settles in an instant."""

    def __init__(self) -> None:
        self.closed = self.unsettled = False
        self._lost: Callable[[], None] = lambda: None

    def is_closed(self) -> bool:
        return self.closed

    def terminate(self) -> None:
        self.lose()

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._lost = callback

    async def settle(self) -> None:
        self.unsettled = False

    def lose(self) -> None:
        """The server goes away."""
        if not self.closed:
            self.closed = True
            self._lost()


@dataclass
class FakeSimilar:
    """Knows one like question, or none, and remembers what it was asked and given."""

    near: CachedResult | None = None
    is_full: bool = False
    asked: list[tuple[str, int, str]] = field(default_factory=list)
    kept: list[tuple[str, int, str, str, float]] = field(default_factory=list)

    def nearest(
        self, tenant: str, *, version: int, variant: str, vector: Floats, params: SearchParams
    ) -> CachedResult | None:
        self.asked.append((tenant, version, variant))
        return self.near

    def keep(
        self,
        tenant: str,
        *,
        version: int,
        variant: str,
        query: str,
        vector: Floats,
        results: list[Passage],
        params: SearchParams,
        ttl_s: float,
    ) -> bool:
        self.kept.append((tenant, version, variant, query, ttl_s))
        return not self.is_full
