"""Each way of searching, in tenants of each size: how many of the right rows, how many rows at all, how long."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtests.bench.recall.data import Asked, Source, answered
from loadtests.bench.recall.subject import COMPARISON, PRODUCT, Size, Subject
from loadtests.bench.recall.ways import chosen, few_ways, ways
from loadtests.report.progress import Say
from services.retrieval.minilm import Floats
from services.retrieval.nearest import Way

TOP_K = 10
PARTS = (1000, 100, 10)
WARM_UP = 3
LEAST_QUESTIONS = 6
LINE_S = 6.0  # a slow way is asked fewer questions

Ways = Mapping[str, Way]


@dataclass(frozen=True, slots=True)
class Line:
    """One way in one tenant; `is_chosen` says that retrieval would take it."""

    data: str
    storage: str
    chunks: int
    all_chunks: int
    way: str
    recall: float
    returned: float
    p50_ms: float
    p99_ms: float
    questions: int
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """What a graph of so many rows costs: to make at once, to keep up by one row; and, of all rows, to store."""

    data: str
    storage: str
    rows: int
    build_s: float
    size: Size
    insert_ms: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything: each share as retrieval stores it, and two ways of storing side by side."""

    shares: list[Line]
    storages: list[Line]
    graphs: list[Graph]


def needed(rows: int, number: int) -> int:
    """Vectors of one source."""
    return rows + sum(rows // part for part in PARTS) + number


async def measure(subject: Subject, sources: Mapping[str, Source], rows: int, number: int, say: Say) -> Measured:
    """Of each source: one tenant alone, then three small ones beside it; of the last, also all in full precision."""
    everything = Measured([], [], [])
    for data, source in sources.items():
        run = _Run(subject, data, source.draw(number), say)
        await subject.clear()
        await run.alone(source.draw(rows), everything)
        await run.beside({f"1/{part}": source.draw(rows // part) for part in PARTS}, everything)
    await run.in_both_precisions(everything)
    return everything


class _Run:
    """One source's."""

    def __init__(self, subject: Subject, data: str, asked: Floats, say: Say) -> None:
        self._subject = subject
        self._data = data
        self._asked = asked
        self._say = say
        self._tenants: dict[str, Floats] = {}

    async def alone(self, whole: Floats, into: Measured) -> None:
        await self._add("whole", whole)
        await self._make_graph(PRODUCT, into)
        into.shares.extend([line async for line in self._lines(["whole"], PRODUCT, ways(TOP_K, PRODUCT))])

    async def beside(self, parts: Mapping[str, Floats], into: Measured) -> None:
        seconds = [await self._add(tenant, kept) for tenant, kept in parts.items()]
        added = sum(map(len, parts.values()))
        size = await self._subject.size(PRODUCT)
        into.graphs[-1] = replace(into.graphs[-1], size=size, insert_ms=sum(seconds) / added * 1000)
        self._say(f"{self._data}: {added:,} rows put into the graph")
        into.shares.extend([line async for line in self._lines(list(parts), PRODUCT, ways(TOP_K, PRODUCT))])

    async def in_both_precisions(self, into: Measured) -> None:
        """The two biggest tenants; the others' rows are there."""
        for tenant, kept in self._tenants.items():
            await self._subject.store(tenant, kept, COMPARISON)
        await self._make_graph(COMPARISON, into)
        biggest = sorted(self._tenants, key=lambda tenant: -len(self._tenants[tenant]))[:2]
        for storage in (PRODUCT, COMPARISON):
            found = self._lines(biggest, storage, few_ways(TOP_K, storage))
            into.storages.extend([line async for line in found])

    @property
    def _all(self) -> int:
        return sum(map(len, self._tenants.values()))

    async def _add(self, tenant: str, kept: Floats) -> float:
        self._tenants[tenant] = kept
        await self._subject.fill(tenant, len(kept))
        return await self._subject.store(tenant, kept, PRODUCT)

    async def _make_graph(self, storage: str, into: Measured) -> None:
        build_s = await self._subject.make_graph(storage)
        self._say(f"{self._data}: graph of {storage} made in {build_s:.0f} s")
        size = await self._subject.size(storage)
        into.graphs.append(Graph(self._data, storage, self._all, build_s, size, None))

    async def _lines(self, tenants: Sequence[str], storage: str, compared: Ways) -> AsyncIterator[Line]:
        for tenant in tenants:
            kept = self._tenants[tenant]
            asked = answered(self._asked, kept, TOP_K)
            usual = chosen(len(kept), self._all, TOP_K)
            for name, each in compared.items():
                figures = await self._figures(tenant, each, asked)
                yield Line(self._data, storage, len(kept), self._all, name, *figures, is_chosen=name == usual)

    async def _figures(self, tenant: str, each: Way, asked: Sequence[Asked]) -> tuple[float, float, float, float, int]:
        """Recall, rows, latency's median and 99th percentile, questions."""
        hits = returned = due = number = 0
        seconds: list[float] = []
        until = time.perf_counter() + LINE_S
        for number, question in enumerate(asked, start=1):
            began = time.perf_counter()
            found = await self._subject.search(each, tenant, question.vector, TOP_K)
            if number > WARM_UP:
                seconds.append(time.perf_counter() - began)
            hits += len(found & question.nearest)
            returned += len(found)
            due += len(question.nearest)
            if number >= LEAST_QUESTIONS and time.perf_counter() > until:
                break
        p50, p99 = (float(np.quantile(seconds, q)) * 1000 for q in (0.5, 0.99))
        return hits / due, returned / due, p50, p99, number
