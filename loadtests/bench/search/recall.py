"""Recall and latency of the search by the tenant's share of all rows, for generated vectors and those of real text.

A tenant with all rows comes first; then three with a tenth, a hundredth and a thousandth as many are added. Each is
searched exactly, through the graph with pgvector's defaults, and through the graph as retrieval does it, in half
precision as retrieval stores it and in full. numpy computes the right rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from loadtests.bench.search import recall_page, text
from loadtests.bench.search.embedder import Embedder
from loadtests.bench.search.recall_page import EXACT_NAME, PRODUCT, TOP_K, UNASKED, Graph, Line, Measured, graph_name
from loadtests.bench.tenant import BUILDING, Tenant, database
from loadtests.bench.vectors import Clustered
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services.retrieval.database import READER, Session
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.nearest import APPROXIMATE, EF_SEARCH, EXACT, EXACTLY, SearchStatement, choose_index

SEED = 1
PARTS = (1000, 100, 10)
WARM_UP = 3
MIN_QUESTIONS = 6
LINE_S = 6.0  # a slow search gets fewer questions
LIMIT_S = 60.0
EFFORTS = (40, EF_SEARCH, 200)
FIRST = "graph, first rows met"  # meets no more rows than are requested
MODEL = "bench"
TEXT = "A chunk of a document, about as long as most of them are. " * 12
COMPARISON = "vector"
TABLES = {PRODUCT: "vectors", COMPARISON: "full_vectors"}
GRAPHS = {PRODUCT: "vectors_by_distance", COMPARISON: "full_vectors_by_distance"}
COMPARED = f"""
CREATE TABLE full_vectors (
    tenant text, doc_id text, ordinal integer, model text, embedding vector({DIMENSIONS}) STORAGE PLAIN NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal, model)
);
GRANT SELECT ON full_vectors TO {READER};
ALTER TABLE full_vectors ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON full_vectors USING (tenant = current_setting('weir.tenant', true));
ALTER TABLE chunks DISABLE TRIGGER chunks_have_words; -- no search by words here
"""


class Options(msgspec.Struct, frozen=True):
    rows: Annotated[int, msgspec.Meta(ge=PARTS[0] * 2, description="chunks of the biggest tenant")] = 100_000
    questions: Annotated[int, msgspec.Meta(ge=10, description="questions for each line of the table")] = 100
    embed: Annotated[bool, msgspec.Meta(description="only embed the text, and keep the vectors")] = False


QUICK = {"rows": 2 * PARTS[0], "questions": 10}


async def measure(options: Options, say: Say) -> Result:
    """Measure with generated vectors and with real text. Exits if the packages hold too little text."""
    embedder = Embedder()
    needed = options.rows + sum(options.rows // part for part in PARTS) + options.questions
    try:
        embedded = text.vectors(needed, embedder, embedder.model.fingerprint, say)
    except text.TooFewSentences as error:
        raise SystemExit(f"{error}: choose fewer --rows") from None
    if options.embed:
        raise SystemExit(0)
    drawn = {"generated": Clustered(SEED).draw(needed), "text": embedded}
    found = Measured([], [], [])
    async with database() as (_, connection):
        await connection.execute(COMPARED)
        for data, vectors in drawn.items():
            run = Run(connection, data, vectors, options, found, say)
            await run.by_share()
        await run.in_both_precisions()
    return recall_page.result(found)


class Run:
    """The tenants of one kind of data, in an otherwise empty database."""

    def __init__(
        self, connection: Any, data: str, vectors: Floats, options: Options, found: Measured, say: Say
    ) -> None:
        """Each vector is used once: questions are never stored."""
        self._connection = connection
        self._session = Session(connection)
        self._data = data
        sizes = {"whole": options.rows, **{f"1/{part}": options.rows // part for part in PARTS}}
        self._asked, *parts = np.split(vectors, np.cumsum([options.questions, *sizes.values()])[:-1])
        self._parts = dict(zip(sizes, parts, strict=True))
        self._tenants: dict[str, Floats] = {}
        self._found = found
        self._say = say

    async def by_share(self) -> None:
        for graph in GRAPHS.values():
            await self._connection.execute(f"DROP INDEX IF EXISTS {graph}")
        await self._connection.execute("TRUNCATE corpora, documents, chunks, vectors, full_vectors CASCADE")
        await self._move_in(["whole"])
        await self._make_graph(PRODUCT)
        await self._ask(["whole"], PRODUCT, ways(PRODUCT), self._found.shares)
        small = [tenant for tenant in self._parts if tenant != "whole"]
        seconds = await self._move_in(small)
        added = sum(len(self._parts[tenant]) for tenant in small)
        graphs = self._found.graphs
        rows_mb, graph_mb = await self._sizes(PRODUCT)
        graphs[-1] = replace(graphs[-1], rows_mb=rows_mb, graph_mb=graph_mb, insert_ms=seconds / added * 1000)
        self._say(f"{self._data}: {added:,} rows added to the graph")
        await self._ask(small, PRODUCT, ways(PRODUCT), self._found.shares)

    async def in_both_precisions(self) -> None:
        """Measure the two biggest tenants, with all rows stored again in a table of full precision."""
        for tenant, vectors in self._tenants.items():
            await self._store(tenant, vectors, COMPARISON)
        await self._make_graph(COMPARISON)
        for storage in (PRODUCT, COMPARISON):
            usual = {name: each for name, each in ways(storage).items() if name in (EXACT_NAME, graph_name(EF_SEARCH))}
            await self._ask(["whole", f"1/{PARTS[-1]}"], storage, usual, self._found.storages)

    async def _move_in(self, tenants: Iterable[str]) -> float:
        """Store the tenants. Returns the seconds that their vectors took."""
        seconds = 0.0
        for tenant in tenants:
            self._tenants[tenant] = self._parts[tenant]
            number = len(self._parts[tenant])
            await Tenant(self._connection, tenant, number).put_chunks([TEXT] * number)
            seconds += await self._store(tenant, self._parts[tenant], PRODUCT)
        return seconds

    async def _store(self, tenant: str, vectors: Floats, storage: str) -> float:
        """Returns the seconds to store the vectors, including the graph if there is one."""
        began = time.perf_counter()
        await Tenant(self._connection, tenant, len(vectors)).put_vectors(vectors, MODEL, table=TABLES[storage])
        seconds = time.perf_counter() - began
        await self._connection.execute(f"ANALYZE {TABLES[storage]}; ANALYZE chunks")
        return seconds

    async def _make_graph(self, storage: str) -> None:
        making = f"CREATE INDEX {GRAPHS[storage]} ON {TABLES[storage]} USING hnsw (embedding {storage}_cosine_ops)"
        await self._connection.execute(BUILDING)
        began = time.perf_counter()
        await self._connection.execute(making)
        seconds = time.perf_counter() - began
        self._say(f"{self._data}: graph of {storage} made in {seconds:.0f} s")
        rows_mb, graph_mb = await self._sizes(storage)
        self._found.graphs.append(Graph(self._data, storage, self._all, seconds, rows_mb, graph_mb, None))

    async def _sizes(self, storage: str) -> list[float]:
        size = "SELECT pg_relation_size($1::text::regclass) / 1e6"
        return [float(await self._connection.fetchval(size, name)) for name in (TABLES[storage], GRAPHS[storage])]

    @property
    def _all(self) -> int:
        return sum(map(len, self._tenants.values()))

    async def _ask(
        self, tenants: Iterable[str], storage: str, compared: Mapping[str, SearchStatement], into: list[Line]
    ) -> None:
        for tenant in tenants:
            stored = self._tenants[tenant]
            right = list(nearest(self._asked, stored))
            usual = chosen(len(stored), self._all)
            for name, each in compared.items():
                asked = await self._asked_in(each, tenant, right)
                into.append(Line(self._data, storage, len(stored), self._all, name, *asked, is_chosen=name == usual))

    async def _asked_in(
        self, chosen: SearchStatement, tenant: str, right: list[frozenset[int]]
    ) -> tuple[float, float, float, float, int]:
        """(recall, share of the rows, p50 in ms, p99 in ms, questions)."""
        hits = returned = due = number = 0
        seconds: list[float] = []
        until = time.perf_counter() + LINE_S
        for number, (vector, nearest_rows) in enumerate(zip(self._asked, right, strict=True), start=1):
            began = time.perf_counter()
            rows = await self._session.fetch(
                LIMIT_S, chosen.sql, tenant, vector, TOP_K, MODEL, tenant=tenant, settings=chosen.settings
            )
            if number > WARM_UP:
                seconds.append(time.perf_counter() - began)
            found = {row["ordinal"] for row in rows}
            hits, returned, due = hits + len(found & nearest_rows), returned + len(found), due + len(nearest_rows)
            if number >= MIN_QUESTIONS and time.perf_counter() > until:
                break
        p50, p99 = (float(np.quantile(seconds, q)) * 1000 for q in (0.5, 0.99))
        return hits / due, returned / due, p50, p99, number


def nearest(asked: Floats, stored: Floats, top_k: int = TOP_K) -> Iterator[frozenset[int]]:
    for vector in asked:  # one at a time: all cosines at once would be hundreds of megabytes
        best = np.argpartition(-(stored @ vector), min(top_k, len(stored)) - 1)[:top_k]
        yield frozenset(best.tolist())


def ways(storage: str) -> dict[str, SearchStatement]:
    """The statements to search a tenant, by name."""
    unasked = {"hnsw.iterative_scan": "off", "hnsw.ef_search": "40", "weir.rows_met": str(TOP_K)}
    return {
        EXACT_NAME: SearchStatement(_among(EXACT, storage)),
        UNASKED: _through_graph(40, storage, **unasked),
        FIRST: _through_graph(EF_SEARCH, storage, **{"weir.rows_met": str(TOP_K)}),
        **{graph_name(ef): _through_graph(ef, storage) for ef in EFFORTS},
    }


def _through_graph(ef_search: int, storage: str, **settings: str) -> SearchStatement:
    """Retrieval's statement for a big tenant, with other settings."""
    usual = choose_index(1, TOP_K, all_chunks=EF_SEARCH, exact_up_to=0).settings
    return SearchStatement(_among(APPROXIMATE, storage), {**usual, "hnsw.ef_search": str(ef_search), **settings})


def _among(sql: str, storage: str) -> str:
    return sql.replace(f"FROM {TABLES[PRODUCT]}", f"FROM {TABLES[storage]}")


def chosen(chunks: int, all_chunks: int) -> str:
    """The name of the search that retrieval chooses."""
    return EXACT_NAME if choose_index(chunks, TOP_K, all_chunks=all_chunks) is EXACTLY else graph_name(EF_SEARCH)
