"""Each way of searching, in tenants of each size: how many of the right rows, how many rows at all, how long."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.recall.data import Asked, Source, questions
from bench.recall.subject import Subject, ways
from services.retrieval.minilm import Floats
from services.retrieval.nearest import Way

TOP_K = 10
EF_SEARCH = (40, 100, 200, 400)
PARTS = (1000, 100, 10)
WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One way in one tenant."""

    chunks: int
    share: float
    storage: str
    way: str
    recall: float
    returned: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Graph:
    """What a graph costs: to make at once, to keep up by one row, to store."""

    storage: str
    rows: int
    build_s: float
    mb: float
    insert_ms: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    lines: list[Line]
    graphs: list[Graph]
    plain_insert_ms: float


async def measure(subject: Subject, rows: int, number: int, seed: int, say: Callable[[str], None]) -> Measured:
    """With one tenant alone, then with three small ones beside it; then again with half the precision."""
    source = Source(seed)
    tenants = {"whole": source.draw(rows)}
    await subject.drop_graph()
    plain_s = await subject.fill("whole", tenants["whole"])
    say(f"{rows:,} rows stored")
    build_s = await subject.make_graph("vector")
    mb = await subject.graph_mb()
    say(f"graph made in {build_s:.0f} s")
    lines = [line async for line in _compare(subject, source, tenants, "vector", number)]
    added_s = 0.0
    for part in PARTS:
        tenants[f"1/{part}"] = source.draw(rows // part)
        added_s += await subject.fill(f"1/{part}", tenants[f"1/{part}"])
    added = sum(len(kept) for kept in tenants.values()) - rows
    graphs = [Graph("vector", rows, build_s, mb, added_s / added * 1000)]
    say(f"{added:,} rows added")
    lines += [line async for line in _compare(subject, source, tenants, "vector", number)]
    await subject.drop_graph()
    build_s = await subject.make_graph("halfvec")
    graphs.append(Graph("halfvec", rows + added, build_s, await subject.graph_mb(), None))
    say(f"graph of half precision made in {build_s:.0f} s")
    lines += [line async for line in _compare(subject, source, tenants, "halfvec", number)]
    return Measured(lines, graphs, plain_s / rows * 1000)


async def _compare(
    subject: Subject, source: Source, tenants: Mapping[str, Floats], storage: str, number: int
) -> AsyncIterator[Line]:
    every = sum(len(kept) for kept in tenants.values())
    for tenant, kept in tenants.items():
        asked = questions(source, kept, number, TOP_K)
        for name, chosen in ways(TOP_K, EF_SEARCH, storage).items():
            if storage == "vector" or name.startswith("graph, ef"):
                yield await _line(subject, tenant, len(kept), len(kept) / every, storage, name, chosen, asked)


async def _line(
    subject: Subject,
    tenant: str,
    chunks: int,
    share: float,
    storage: str,
    name: str,
    chosen: Way,
    asked: Iterable[Asked],
) -> Line:
    hits = returned = due = 0
    seconds: list[float] = []
    for position, question in enumerate(asked):
        began = time.perf_counter()
        found = await subject.search(chosen, tenant, question.vector, TOP_K)
        if position >= WARM_UP:
            seconds.append(time.perf_counter() - began)
        hits += len(found & question.nearest)
        returned += len(found)
        due += len(question.nearest)
    p50, p99 = (float(np.quantile(seconds, q)) * 1000 for q in (0.5, 0.99))
    return Line(chunks, share, storage, name, hits / due, returned / due, p50, p99)
