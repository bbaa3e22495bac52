"""The database that is measured: Weir's own schema, filled by COPY, with one graph or another."""

from __future__ import annotations

import time
from typing import Any

from services.retrieval.database import Session
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.nearest import APPROXIMATE, EXACTLY, Way, way

CHUNK = ("tenant", "doc_id", "ordinal", "text")
VECTOR = ("tenant", "doc_id", "ordinal", "model", "embedding")
MODEL = "bench"
TEXT = "A chunk of a document, about as long as most of them are. " * 12
GRAPH = "vectors_by_distance"
STORAGES = {
    "halfvec": "embedding halfvec_cosine_ops",
    "vector": f"(embedding::vector({DIMENSIONS})) vector_cosine_ops",
}


class Subject:
    """One connection, as the owner where it fills and as retrieval's role where it searches."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._session = Session(connection)

    async def drop_graph(self) -> None:
        await self._connection.execute(f"DROP INDEX IF EXISTS {GRAPH}")

    async def make_graph(self, storage: str) -> float:
        """Seconds it took."""
        await self._connection.execute("SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 0")
        began = time.perf_counter()
        await self._connection.execute(f"CREATE INDEX {GRAPH} ON vectors USING hnsw ({STORAGES[storage]})")
        return time.perf_counter() - began

    async def graph_mb(self) -> float:
        return float(await self._connection.fetchval("SELECT pg_relation_size($1::text::regclass)", GRAPH)) / 1e6

    async def fill(self, tenant: str, vectors: Floats) -> float:
        """Seconds it took to store these vectors as one document."""
        began = time.perf_counter()
        async with self._connection.transaction():
            await self._connection.execute("INSERT INTO corpora VALUES ($1, 1)", tenant)
            await self._connection.execute("INSERT INTO documents VALUES ($1, 'd', 'r', 't', 'h', 1)", tenant)
            chunks = [(tenant, "d", ordinal, TEXT) for ordinal in range(len(vectors))]
            await self._connection.copy_records_to_table("chunks", columns=CHUNK, records=chunks)
            made = [(tenant, "d", ordinal, MODEL, vector) for ordinal, vector in enumerate(vectors)]
            await self._connection.copy_records_to_table("vectors", columns=VECTOR, records=made)
        seconds = time.perf_counter() - began
        await self._connection.execute("ANALYZE chunks; ANALYZE vectors")
        return seconds

    async def search(self, chosen: Way, tenant: str, vector: Floats, top_k: int) -> set[int]:
        """The ordinals that are found."""
        rows = await self._session.fetch(
            60.0, chosen.sql, tenant, vector, top_k, MODEL, tenant=tenant, settings=chosen.settings
        )
        return {row["ordinal"] for row in rows}


def graph_way(top_k: int, ef_search: int, storage: str, *, iterative: bool = True) -> Way:
    """As retrieval searches a big tenant, with other numbers."""
    settings = {**way(1, top_k, exact_up_to=0).settings, "hnsw.ef_search": str(ef_search)}
    if not iterative:
        settings["hnsw.iterative_scan"] = "off"
    sql = APPROXIMATE
    if storage == "vector":
        sql = sql.replace("embedding <=> $2", f"embedding::vector({DIMENSIONS}) <=> $2::halfvec::vector({DIMENSIONS})")
    return Way(sql, settings)


def ways(top_k: int, efforts: tuple[int, ...], storage: str) -> dict[str, Way]:
    """What is compared, by name."""
    graphs = {f"graph, ef {ef}": graph_way(top_k, ef, storage) for ef in efforts}
    return {"exact": EXACTLY, "graph, unasked": graph_way(top_k, 40, storage, iterative=False), **graphs}
