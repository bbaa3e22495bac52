"""A tenant with many chunks in a real database, stored by COPY, which takes seconds for tens of thousands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from loadtests.cluster.embedded import postgres
from services.retrieval.database import connect
from services.retrieval.minilm import Floats

CONNECT_WITHIN_S = 60.0
DOCUMENT = ("tenant", "doc_id", "root", "title", "content_hash", "version")
CHUNK = ("tenant", "doc_id", "ordinal", "text")
VECTOR = ("tenant", "doc_id", "ordinal", "model", "embedding")
BUILDING = "SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 0"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await connect(url, timeout_s=CONNECT_WITHIN_S, application="bench")
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def database() -> AsyncIterator[tuple[str, Any]]:
    """An empty embedded database: its URL, and a connection to it."""
    with postgres() as server:
        async with connected(server.url) as connection:
            yield server.url, connection


class Tenant:
    """A tenant whose chunks are numbered across its documents, `chunks_each` in each."""

    def __init__(self, connection: Any, name: str, chunks_each: int = 100) -> None:
        self._connection = connection
        self._name = name
        self._chunks_each = chunks_each

    async def put_chunks(self, texts: Sequence[str], first: int = 0) -> None:
        """Store whole documents without vectors; `first` is the number of the first chunk."""
        places = self._places(len(texts), first)
        names = sorted({doc_id for doc_id, _ in places})
        documents = [(self._name, doc_id, "bench", doc_id, "hash", 1) for doc_id in names]
        chunks = [(self._name, *place, text) for place, text in zip(places, texts, strict=True)]
        async with self._connection.transaction():
            await self._connection.execute("INSERT INTO corpora VALUES ($1, 1) ON CONFLICT DO NOTHING", self._name)
            await self._connection.copy_records_to_table("documents", columns=DOCUMENT, records=documents)
            await self._connection.copy_records_to_table("chunks", columns=CHUNK, records=chunks)

    async def put_vectors(self, vectors: Floats, model: str, first: int = 0, table: str = "vectors") -> None:
        """Store the vectors of chunks that are stored already."""
        places = self._places(len(vectors), first)
        records = [(self._name, *place, model, vector) for place, vector in zip(places, vectors, strict=True)]
        await self._connection.copy_records_to_table(table, columns=VECTOR, records=records)

    def _places(self, count: int, first: int) -> list[tuple[str, int]]:
        each = self._chunks_each
        return [(f"d{number // each:06d}", number % each) for number in range(first, first + count)]


@asynccontextmanager
async def indexes_made_at_once(connection: Any, *names: str) -> AsyncIterator[None]:
    """Drops these indexes and creates them after the block: filling them row by row takes several times as long."""
    making = [await connection.fetchval("SELECT pg_get_indexdef($1::text::regclass)", name) for name in names]
    await connection.execute(f"DROP INDEX {', '.join(names)}")
    yield
    await connection.execute(BUILDING)
    for statement in making:
        await connection.execute(statement)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
