"""SQL that writes: a tenant's documents, replaced and removed, and the corpus version.

Each document is one transaction: old chunks out, new ones in, corpus version up. So a reader sees it before or after,
and an ingest that was stopped keeps what is done. Each transaction is `locked`: it runs as a role that owns nothing and
sees one tenant's rows. Rows go in by INSERT, since COPY does not work under row-level security.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from pgvector import HalfVector

from services.retrieval.database import WRITER, locked
from services.retrieval.minilm import Floats

# Its row lock serialises the writers of one tenant.
NEXT_VERSION = """
INSERT INTO corpora (tenant, version) VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (tenant) DO UPDATE SET version = greatest(corpora.version + 1, excluded.version)
RETURNING version
"""
PUT_DOCUMENT = """
INSERT INTO documents (tenant, doc_id, root, title, content_hash, version) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, doc_id) DO UPDATE
SET root = excluded.root, title = excluded.title, content_hash = excluded.content_hash, version = excluded.version
"""
# With the number of chunks that this model has not embedded.
DOCUMENTS = """
SELECT doc_id, root, content_hash, coalesce(lacking.chunks, 0) AS unembedded
FROM documents LEFT JOIN (
    SELECT doc_id, count(*) AS chunks FROM chunks
    WHERE tenant = $1 AND NOT EXISTS (
        SELECT FROM vectors WHERE vectors.tenant = $1 AND vectors.doc_id = chunks.doc_id
            AND vectors.ordinal = chunks.ordinal AND vectors.model = $2)
    GROUP BY doc_id
) AS lacking USING (doc_id)
WHERE documents.tenant = $1
"""
USED = "SELECT documents, bytes FROM corpora WHERE tenant = $1"
MOVE_DOCUMENT = "UPDATE documents SET root = $3 WHERE tenant = $1 AND doc_id = $2"
REMOVE_CHUNKS = "DELETE FROM chunks WHERE tenant = $1 AND doc_id = $2"
ADD_CHUNKS = """
INSERT INTO chunks (tenant, doc_id, ordinal, text)
SELECT $1, $2, ordinal - 1, text FROM unnest($3::text[]) WITH ORDINALITY AS chunk (text, ordinal)
"""
ADD_VECTORS = """
INSERT INTO vectors (tenant, doc_id, ordinal, model, embedding)
SELECT $1, $2, ordinal - 1, $3, embedding FROM unnest($4::halfvec[]) WITH ORDINALITY AS made (embedding, ordinal)
"""
REMOVE_DOCUMENTS = "DELETE FROM documents WHERE tenant = $1 AND doc_id = ANY($2)"
LOCK = "SELECT pg_try_advisory_lock(hashtextextended('weir ingest ' || $1, 0))"
UNLOCK = "SELECT pg_advisory_unlock(hashtextextended('weir ingest ' || $1, 0))"


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored document: its folder, and the digest of its bytes and chunking.

    `unembedded`: how many of its chunks have no vector of the requested model.
    """

    root: str
    content_hash: str
    unembedded: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may store: a number of documents, and bytes of text in their chunks."""

    documents: int
    bytes: int

    def fault(self, used: Used, before: Used | None = None) -> str:
        """The exceeded bound in words, or an empty string. A tenant already above a bound may shrink."""
        grown = before or Used(-1, -1)
        if used.documents > self.documents and used.documents > grown.documents:
            return f"a tenant may keep {self.documents:,} documents (documents.count)"
        if used.bytes > self.bytes and used.bytes > grown.bytes:
            return f"a tenant's documents may have {self.bytes:,} bytes of text in all (documents.bytes)"
        return ""


@dataclass(frozen=True, slots=True)
class Used:
    """What a tenant stores, in the units of its quota."""

    documents: int
    bytes: int


class QuotaExceeded(Exception):
    """The document was not written; the message names the bound."""


class Corpus:
    """One tenant's documents, over a connection that nothing else uses."""

    def __init__(self, connection: Any, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant

    async def lock(self) -> bool:
        """Keep out other ingests of this tenant until the connection ends; False if one is running."""
        return bool(await self._connection.fetchval(LOCK, self._tenant))

    async def unlock(self) -> None:
        """End the lock before the connection ends."""
        if not self._connection.is_closed():
            await self._connection.fetchval(UNLOCK, self._tenant)

    async def documents(self, model: str) -> dict[str, Stored]:
        async with self._locked():
            rows = await self._connection.fetch(DOCUMENTS, self._tenant, model)
        return {row["doc_id"]: Stored(row["root"], row["content_hash"], row["unembedded"]) for row in rows}

    async def put(
        self,
        doc_id: str,
        *,
        root: str,
        title: str,
        content_hash: str,
        texts: Sequence[str],
        vectors: Floats,
        model: str,
        quota: Quota | None = None,
    ) -> None:
        """Add this document, or replace the one with its id; `model` made the vectors.

        Raises ValueError unless there is one vector for each text. Raises QuotaExceeded, and writes nothing, if the
        tenant has no room. The first statement locks the corpus's row, so two writers cannot both take the last room.
        """
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts and {len(vectors)} vectors")
        async with self._locked():
            version = await self._connection.fetchval(NEXT_VERSION, self._tenant)
            before = await self.used()
            await self._connection.execute(PUT_DOCUMENT, self._tenant, doc_id, root, title, content_hash, version)
            await self._connection.execute(REMOVE_CHUNKS, self._tenant, doc_id)
            await self._connection.execute(ADD_CHUNKS, self._tenant, doc_id, list(texts))
            made = [HalfVector(vector) for vector in vectors]
            await self._connection.execute(ADD_VECTORS, self._tenant, doc_id, model, made)
            if quota is not None and (fault := quota.fault(await self.used(), before)):
                raise QuotaExceeded(fault)

    async def used(self) -> Used:
        """What the tenant stores. Runs in the open transaction."""
        row = await self._connection.fetchrow(USED, self._tenant)
        return Used(row["documents"], row["bytes"]) if row else Used(0, 0)

    async def move(self, doc_id: str, root: str) -> None:
        """The same content is now below another folder; readers see no change, so the version stays."""
        async with self._locked():
            await self._connection.execute(MOVE_DOCUMENT, self._tenant, doc_id, root)

    async def remove(self, doc_ids: Sequence[str]) -> None:
        async with self._locked():
            await self._connection.fetchval(NEXT_VERSION, self._tenant)
            await self._connection.execute(REMOVE_DOCUMENTS, self._tenant, list(doc_ids))

    def _locked(self) -> AbstractAsyncContextManager[None]:
        return locked(self._connection, WRITER, self._tenant)
