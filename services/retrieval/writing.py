"""All SQL that writes: a tenant's documents, replaced and removed, with the corpus version moved in the same breath.

Each document is one transaction: its old chunks out, its new ones in, and the corpus one version on. A reader sees it
before or after, never between; an ingest that is stopped keeps what it has done and goes on from there.

Each transaction is a `locked` one: as a role that owns nothing, among one tenant's rows. Rows go in by INSERT, since
COPY does not work under row-level security.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from pgvector import HalfVector

from services.retrieval.database import WRITER, locked
from services.retrieval.minilm import Floats

# The row lock that this takes also makes writers of one tenant follow one another.
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
    """A document as the database has it: where it came from, and the digest of what it was made of.

    `unembedded` is how many of its chunks have no vector of the model that was asked for.
    """

    root: str
    content_hash: str
    unembedded: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may keep: so many documents, and so many bytes of text in their chunks."""

    documents: int
    bytes: int

    def fault(self, used: Used, before: Used | None = None) -> str:
        """Which bound is passed, in words; empty for none. Whoever had more than that before may still have less."""
        grown = before or Used(-1, -1)
        if used.documents > self.documents and used.documents > grown.documents:
            return f"a tenant may keep {self.documents:,} documents (documents.count)"
        if used.bytes > self.bytes and used.bytes > grown.bytes:
            return f"a tenant's documents may have {self.bytes:,} bytes of text in all (documents.bytes)"
        return ""


@dataclass(frozen=True, slots=True)
class Used:
    """What a tenant keeps, in the terms of its quota."""

    documents: int
    bytes: int


class QuotaExceeded(Exception):
    """The document was not written: the message names the bound."""


class Corpus:
    """One tenant's documents, over one connection that is nobody else's."""

    def __init__(self, connection: Any, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant

    async def lock(self) -> bool:
        """Keep other ingests of this tenant out for as long as the connection lasts; False when one is running."""
        return bool(await self._connection.fetchval(LOCK, self._tenant))

    async def unlock(self) -> None:
        """Let them in again, sooner than that."""
        if not self._connection.is_closed():
            await self._connection.fetchval(UNLOCK, self._tenant)

    async def documents(self, model: str) -> dict[str, Stored]:
        """Every document there is, by id."""
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
        """Add this document, or put it in the place of the one with its id; `model` is what made the vectors.

        With a quota it is written only if the tenant has room for it: raises QuotaExceeded, and all is as it was. The
        corpus's row is locked from the first statement on, so two writers cannot both take what room there is.
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
        """What it keeps, in a transaction that stands already."""
        row = await self._connection.fetchrow(USED, self._tenant)
        return Used(row["documents"], row["bytes"]) if row else Used(0, 0)

    async def move(self, doc_id: str, root: str) -> None:
        """The same content, found below another folder: nothing that a reader sees has changed."""
        async with self._locked():
            await self._connection.execute(MOVE_DOCUMENT, self._tenant, doc_id, root)

    async def remove(self, doc_ids: Sequence[str]) -> None:
        """Remove these documents and their chunks."""
        async with self._locked():
            await self._connection.fetchval(NEXT_VERSION, self._tenant)
            await self._connection.execute(REMOVE_DOCUMENTS, self._tenant, list(doc_ids))

    def _locked(self) -> AbstractAsyncContextManager[None]:
        return locked(self._connection, WRITER, self._tenant)
