"""SQL for chunks that a model has not embedded: find them, add their vectors, and remove other models' vectors.

A vector is added only if the document still has the version whose text was embedded, under a lock that a writer of the
document waits for.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from pgvector import HalfVector

from services.retrieval.database import NO_TENANT, READER, WRITER, locked
from services.retrieval.modelfolder import DIMENSIONS
from services.retrieval.weights import Floats
from services.retrieval.writing import NEXT_VERSION

ALL_TENANTS = 2**31 - 1

UNEMBEDDED = """
SELECT held.tenant, held.chunks - coalesce(made.chunks, 0) AS chunks
FROM weir_corpora($2) AS held LEFT JOIN weir_embedded() AS made ON made.tenant = held.tenant AND made.model = $1
WHERE held.chunks > coalesce(made.chunks, 0) ORDER BY held.tenant
"""
OTHERS = """
SELECT tenant, sum(chunks)::bigint AS chunks FROM weir_embedded() WHERE model <> $1 GROUP BY tenant ORDER BY tenant
"""
UNEMBEDDED_DOCUMENTS = """
SELECT doc_id FROM documents
WHERE tenant = $1 AND doc_id > $3 AND EXISTS (
    SELECT FROM chunks WHERE chunks.tenant = $1 AND chunks.doc_id = documents.doc_id AND NOT EXISTS (
        SELECT FROM vectors WHERE vectors.tenant = $1 AND vectors.doc_id = documents.doc_id
            AND vectors.ordinal = chunks.ordinal AND vectors.model = $2))
ORDER BY doc_id LIMIT $4
"""
UNEMBEDDED_CHUNKS = """
SELECT chunks.ordinal, chunks.text, documents.version
FROM documents JOIN chunks ON chunks.tenant = $1 AND chunks.doc_id = documents.doc_id
WHERE documents.tenant = $1 AND documents.doc_id = $3 AND NOT EXISTS (
    SELECT FROM vectors WHERE vectors.tenant = $1 AND vectors.doc_id = $3
        AND vectors.ordinal = chunks.ordinal AND vectors.model = $2)
ORDER BY chunks.ordinal LIMIT $4
"""
ADD_MISSING = """
INSERT INTO vectors (tenant, doc_id, ordinal, model, embedding)
SELECT $1, $3, made.ordinal, $2, made.embedding
FROM unnest($5::integer[], $6::halfvec[]) AS made (ordinal, embedding),
     (SELECT FROM documents WHERE tenant = $1 AND doc_id = $3 AND version = $4 FOR SHARE) AS still
ON CONFLICT DO NOTHING
"""
# Only where this model has a vector of the same chunk, so that no chunk is left without one.
FORGET_OTHERS = """
DELETE FROM vectors AS other
WHERE tenant = $1 AND model <> $2 AND EXISTS (
    SELECT FROM vectors AS own
    WHERE own.tenant = $1 AND own.doc_id = other.doc_id AND own.ordinal = other.ordinal AND own.model = $2)
"""
COLUMN_DIMENSIONS = """
SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass('vectors') AND attname = 'embedding'
"""


@dataclass(frozen=True, slots=True)
class Texts:
    """Chunks of one document that a model has not embedded, and the document version they were read from."""

    version: int
    ordinals: list[int]
    texts: list[str]


async def unembedded(connection: Any, model: str) -> dict[str, int]:
    """The number of chunks that this model has not embedded, by tenant; tenants with none are left out."""
    return await _counts(connection, UNEMBEDDED, model, ALL_TENANTS)


async def embedded_by_others(connection: Any, model: str) -> dict[str, int]:
    """The number of vectors of other models, by tenant; tenants with none are left out."""
    return await _counts(connection, OTHERS, model)


async def _counts(connection: Any, sql: str, *arguments: object) -> dict[str, int]:
    async with locked(connection, READER, NO_TENANT):
        return {row["tenant"]: row["chunks"] for row in await connection.fetch(sql, *arguments)}


class Vectors:
    """One model's vectors of one tenant, over a connection that nothing else uses."""

    def __init__(self, connection: Any, tenant: str, model: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._model = model

    async def documents(self, after: str, limit: int) -> list[str]:
        """Up to `limit` ids after `after`, in order, of documents with chunks that have no vector."""
        async with self._locked():
            rows = await self._connection.fetch(UNEMBEDDED_DOCUMENTS, self._tenant, self._model, after, limit)
        return [row["doc_id"] for row in rows]

    async def texts(self, doc_id: str, limit: int) -> Texts | None:
        """Up to `limit` chunks of this document that have no vector; None if all have one."""
        async with self._locked():
            rows = await self._connection.fetch(UNEMBEDDED_CHUNKS, self._tenant, self._model, doc_id, limit)
        if not rows:
            return None
        return Texts(rows[0]["version"], [row["ordinal"] for row in rows], [row["text"] for row in rows])

    async def add(self, doc_id: str, texts: Texts, vectors: Floats) -> int:
        """Add the vectors of these texts; return how many. None are added if the document has changed since."""
        made = [HalfVector(vector) for vector in vectors]
        async with self._locked():
            status = await self._connection.execute(
                ADD_MISSING, self._tenant, self._model, doc_id, texts.version, texts.ordinals, made
            )
        return _rows(status)

    async def advance(self) -> None:
        """Raise the corpus version, which makes cached results stale: searches find more than before."""
        async with self._locked():
            await self._connection.fetchval(NEXT_VERSION, self._tenant)

    async def forget_others(self) -> int:
        """Remove other models' vectors of chunks that this one has embedded; return how many."""
        async with self._locked():
            await self._connection.fetchval(NEXT_VERSION, self._tenant)  # its row lock serialises writers
            return _rows(await self._connection.execute(FORGET_OTHERS, self._tenant, self._model))

    def _locked(self) -> AbstractAsyncContextManager[None]:
        return locked(self._connection, WRITER, self._tenant)


def _rows(status: str) -> int:
    """The number of rows at the end of PostgreSQL's command tag."""
    return int(status.rpartition(" ")[2])


def incompatibility(held: int | None, model: str) -> str | None:
    """Why this model's vectors do not fit a column of `held` dimensions, and what to do; None if they do."""
    if held == DIMENSIONS:
        return None
    return (
        f"the model {model} makes vectors of {DIMENSIONS} numbers, and this database holds vectors of {held}: "
        "set EMBED_MODEL_PATH to a model that fits, or POSTGRES_URL to another database"
    )
