"""The database that is measured: Weir's own schema, filled by COPY; and beside it, as a comparison, a table of the same
rows in full precision, under the same lock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from services.retrieval.database import READER, Session
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.nearest import Way

CHUNK = ("tenant", "doc_id", "ordinal", "text")
VECTOR = ("tenant", "doc_id", "ordinal", "model", "embedding")
MODEL = "bench"
TEXT = "A chunk of a document, about as long as most of them are. " * 12
PRODUCT, COMPARISON = "halfvec", "vector"
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
ALTER TABLE chunks DISABLE TRIGGER chunks_have_words; -- nobody searches by words here
"""
EVERYTHING = "corpora, documents, chunks, vectors, full_vectors"


@dataclass(frozen=True, slots=True)
class Size:
    """What a table's rows and its graph take."""

    rows_mb: float
    graph_mb: float


class Subject:
    """One connection, as the owner where it fills and as retrieval's role where it searches."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._session = Session(connection)

    async def prepare(self) -> None:
        """Once for each database."""
        await self._connection.execute(COMPARED)

    async def clear(self) -> None:
        """No rows and no graphs."""
        for graph in GRAPHS.values():
            await self._connection.execute(f"DROP INDEX IF EXISTS {graph}")
        await self._connection.execute(f"TRUNCATE {EVERYTHING} CASCADE")

    async def make_graph(self, storage: str) -> float:
        """Seconds it took."""
        await self._connection.execute("SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 0")
        began = time.perf_counter()
        await self._connection.execute(
            f"CREATE INDEX {GRAPHS[storage]} ON {TABLES[storage]} USING hnsw (embedding {storage}_cosine_ops)"
        )
        return time.perf_counter() - began

    async def size(self, storage: str) -> Size:
        rows, graph = [
            await self._connection.fetchval("SELECT pg_relation_size($1::text::regclass)", name)
            for name in (TABLES[storage], GRAPHS[storage])
        ]
        return Size(rows / 1e6, graph / 1e6)

    async def fill(self, tenant: str, number: int) -> None:
        """A document of so many chunks, yet without their vectors."""
        async with self._connection.transaction():
            await self._connection.execute("INSERT INTO corpora VALUES ($1, 1)", tenant)
            await self._connection.execute("INSERT INTO documents VALUES ($1, 'd', 'r', 't', 'h', 1)", tenant)
            chunks = [(tenant, "d", ordinal, TEXT) for ordinal in range(number)]
            await self._connection.copy_records_to_table("chunks", columns=CHUNK, records=chunks)

    async def store(self, tenant: str, vectors: Floats, storage: str) -> float:
        """Seconds it took to store the vectors themselves, and to put them into the graph if there is one."""
        rows = [(tenant, "d", ordinal, MODEL, vector) for ordinal, vector in enumerate(vectors)]
        table = TABLES[storage]
        began = time.perf_counter()
        await self._connection.copy_records_to_table(table, columns=VECTOR, records=rows)
        seconds = time.perf_counter() - began
        await self._connection.execute(f"ANALYZE {table}; ANALYZE chunks")
        return seconds

    async def search(self, chosen: Way, tenant: str, vector: Floats, top_k: int) -> set[int]:
        """The ordinals that are found."""
        rows = await self._session.fetch(
            60.0, chosen.sql, tenant, vector, top_k, MODEL, tenant=tenant, settings=chosen.settings
        )
        return {row["ordinal"] for row in rows}
