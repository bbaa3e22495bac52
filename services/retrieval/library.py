"""The database side of the documents API: one document of a tenant at a time, over connections of its own.

Each call is bounded by its deadline; a late connection is discarded, and its uncommitted work with it. So that the
server does not hold row locks for a client that has gone, it bounds each statement by the time left when the call
began, and checks the connection every `NOTICED_MS`. (The bound is for networks that fail silently.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg

from services.contracts.documents import DocumentEntry
from services.retrieval.database import WRITER, Session, locked
from services.retrieval.deadline import DeadlineExceeded, with_deadline
from services.retrieval.minilm import Floats
from services.retrieval.on_demand_pool import OnDemandPool
from services.retrieval.preparing import PreparedDocument
from services.retrieval.vectors import Texts, Vectors
from services.retrieval.writing import Corpus, Quota, QuotaExceeded, Used

CHUNKS_AT_ONCE = 64
ROOT = "api:"  # not a folder's name: an ingest removes only documents of its folders

DOCUMENT = """
SELECT title, content_hash, version,
       (SELECT count(*) FROM chunks WHERE chunks.tenant = $1 AND chunks.doc_id = $2) AS chunks,
       (SELECT count(*) FROM vectors WHERE vectors.tenant = $1 AND vectors.doc_id = $2 AND model = $3) AS vectors
FROM documents WHERE tenant = $1 AND doc_id = $2
"""
PAGE = """
SELECT doc_id, title, version,
       (SELECT count(*) FROM chunks WHERE chunks.tenant = $1 AND chunks.doc_id = documents.doc_id) AS chunks
FROM documents WHERE tenant = $1 AND doc_id > $2 ORDER BY doc_id LIMIT $3
"""
VERSION = "SELECT version FROM corpora WHERE tenant = $1"

NOTICED_MS = 250
# Not every server version has this setting, and not every operating system supports it.
NOTICE = f"""
SELECT set_config(name, '{NOTICED_MS}', false) FROM pg_settings WHERE name = 'client_connection_check_interval'
"""

T = TypeVar("T")


class LibraryFailed(Exception):
    """The database answered with an error, or the connection was lost."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A stored document; `vectors` counts its chunks that have a vector of the requested model."""

    title: str
    content_hash: str
    version: int
    chunks: int
    vectors: int


class Library:
    """Reads and writes documents. `deadline` is in seconds of the loop's clock.

    Raises `DatabaseDown` or `PoolBusy` without a connection, `DeadlineExceeded` at the deadline, else `LibraryFailed`.
    """

    def __init__(self, pool: OnDemandPool[Session]) -> None:
        self._pool = pool

    def stop(self) -> None:
        self._pool.stop()

    async def held(self, tenant: str, doc_id: str, model: str, deadline: float) -> StoredDocument | None:
        """The document; None if there is none."""
        rows = await self._fetch(tenant, deadline, DOCUMENT, tenant, doc_id, model)
        return StoredDocument(**rows[0]) if rows else None

    async def page(self, tenant: str, after: str, limit: int, deadline: float) -> list[DocumentEntry]:
        """Up to `limit` documents with ids after `after`, in order."""
        rows = await self._fetch(tenant, deadline, PAGE, tenant, after, limit)
        return [DocumentEntry(row["doc_id"], row["title"], row["version"], row["chunks"]) for row in rows]

    async def used(self, tenant: str, deadline: float) -> Used:
        async def read(connection: Any) -> Used:
            async with locked(connection, WRITER, tenant):
                return await Corpus(connection, tenant).used()

        return await self._with_session(deadline, read)

    async def put(
        self,
        tenant: str,
        doc_id: str,
        document: PreparedDocument,
        vectors: Floats,
        model: str,
        deadline: float,
        quota: Quota,
    ) -> int:
        """Add or replace a document in one transaction; return the corpus version. Raises QuotaExceeded."""

        async def write(connection: Any) -> int:
            await Corpus(connection, tenant).put(
                doc_id, root=ROOT, title=document.title, content_hash=document.content_hash,
                texts=document.texts, vectors=vectors, model=model, quota=quota,
            )  # fmt: skip
            return await _version(connection, tenant)

        return await self._with_session(deadline, write)

    async def unembedded(self, tenant: str, doc_id: str, model: str, deadline: float) -> Texts | None:
        """Up to CHUNKS_AT_ONCE chunks that this model has not embedded; None if there are none."""

        async def read(connection: Any) -> Texts | None:
            return await Vectors(connection, tenant, model).texts(doc_id, CHUNKS_AT_ONCE)

        return await self._with_session(deadline, read)

    async def add_vectors(
        self, tenant: str, doc_id: str, texts: Texts, vectors: Floats, model: str, deadline: float
    ) -> int:
        """Add the vectors of these chunks; return the corpus version."""

        async def write(connection: Any) -> int:
            held = Vectors(connection, tenant, model)
            if await held.add(doc_id, texts, vectors):
                await held.advance()
            return await _version(connection, tenant)

        return await self._with_session(deadline, write)

    async def remove(self, tenant: str, doc_id: str, deadline: float) -> int:
        """Remove a document in one transaction; return the corpus version."""

        async def write(connection: Any) -> int:
            await Corpus(connection, tenant).remove([doc_id])
            return await _version(connection, tenant)

        return await self._with_session(deadline, write)

    async def _fetch(self, tenant: str, deadline: float, sql: str, *arguments: object) -> list[Any]:
        async def read(connection: Any) -> list[Any]:
            async with locked(connection, WRITER, tenant):
                rows: list[Any] = await connection.fetch(sql, *arguments)
            return rows

        return await self._with_session(deadline, read)

    async def _with_session(self, deadline: float, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        session = await self._pool.take(deadline)
        try:
            result = await with_deadline(deadline, _bounded(session.connection, deadline, work))
        except asyncpg.QueryCanceledError:
            self._pool.give_back(session)
            raise DeadlineExceeded from None
        except QuotaExceeded:
            self._pool.give_back(session)
            raise
        except asyncpg.PostgresError as error:
            self._pool.give_back(session)
            raise LibraryFailed(type(error).__name__) from None
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            self._pool.discard(session)
            raise LibraryFailed(type(error).__name__) from None
        except BaseException:
            self._pool.discard(session)  # uncommitted work is lost with it
            raise
        self._pool.give_back(session)
        return result


async def _bounded(connection: Any, deadline: float, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Set the server's time limit for the whole session, since a call may have several transactions, then work."""
    left_ms = max(1, math.ceil((deadline - asyncio.get_running_loop().time()) * 1000))
    await connection.execute(f"SET statement_timeout = {left_ms}")
    with suppress(asyncpg.PostgresError):
        await connection.execute(NOTICE)
    return await work(connection)


async def _version(connection: Any, tenant: str) -> int:
    """The corpus version; perhaps a later writer's, which serves a cache as well."""
    async with locked(connection, WRITER, tenant):
        return int(await connection.fetchval(VERSION, tenant))
