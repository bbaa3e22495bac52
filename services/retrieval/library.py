"""A tenant's documents one at a time, over connections of their own: what the documents API asks of the database.

Somebody's writing never takes a search's connection, not even the last one that the server has to give: see
`on_demand_pool.py`. Every call is bounded by its deadline: a connection that is late is discarded, and what it had not
committed with it.

The server stops as well, or it would hold the rows' locks for nobody. It bounds each statement by what was left of the
time when the call began. And it looks every `NOTICED_MS` whether the connection still stands, so that it also stops for
a client that has left early; a wire that dies without a word is what the bound is for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import asyncpg

from services.contracts.documents import DocumentEntry
from services.retrieval.database import WRITER, Session, locked
from services.retrieval.deadline import DeadlineExceeded, with_deadline
from services.retrieval.minilm import Floats
from services.retrieval.preparing import PreparedDocument
from services.retrieval.vectors import Texts, Vectors
from services.retrieval.writing import Corpus, Quota, QuotaExceeded, Used

CHUNKS_AT_ONCE = 64
ROOT = "api:"  # no folder's name: an ingest that finds files gone removes only what came from its folder

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
# Not every server knows this setting, and not every server's system can do it.
NOTICE = f"""
SELECT set_config(name, '{NOTICED_MS}', false) FROM pg_settings WHERE name = 'client_connection_check_interval'
"""

T = TypeVar("T")


class LibraryFailed(Exception):
    """The database answered with an error, or was lost."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document that is in, and how many of its chunks have a vector of the model that was asked for."""

    title: str
    content_hash: str
    version: int
    chunks: int
    vectors: int


class SessionPool(Protocol):
    """Who has connections to lend."""

    async def take(self, deadline: float) -> Session: ...

    def give_back(self, connection: Session) -> None: ...

    def discard(self, connection: Session) -> None: ...

    def stop(self) -> None: ...


class Library:
    """Raises `DatabaseDown` or `PoolBusy` where there is no connection, `DeadlineExceeded` at the deadline, and else
    `LibraryFailed`.
    """

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def stop(self) -> None:
        """Leave the database."""
        self._pool.stop()

    async def held(self, tenant: str, doc_id: str, model: str, deadline: float) -> StoredDocument | None:
        """One document; None: there is none."""
        rows = await self._fetch(tenant, deadline, DOCUMENT, tenant, doc_id, model)
        return StoredDocument(**rows[0]) if rows else None

    async def page(self, tenant: str, after: str, limit: int, deadline: float) -> list[DocumentEntry]:
        """Up to `limit` documents whose ids come after this one."""
        rows = await self._fetch(tenant, deadline, PAGE, tenant, after, limit)
        return [DocumentEntry(row["doc_id"], row["title"], row["version"], row["chunks"]) for row in rows]

    async def used(self, tenant: str, deadline: float) -> Used:
        """What the tenant keeps."""

        async def read(connection: Any) -> Used:
            async with locked(connection, WRITER, tenant):
                return await Corpus(connection, tenant).used()

        return await self._over(deadline, read)

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
        """Add or replace it, in one transaction. The corpus version that has it. Raises QuotaExceeded."""

        async def write(connection: Any) -> int:
            await Corpus(connection, tenant).put(
                doc_id, root=ROOT, title=document.title, content_hash=document.content_hash,
                texts=document.texts, vectors=vectors, model=model, quota=quota,
            )  # fmt: skip
            return await _version(connection, tenant)

        return await self._over(deadline, write)

    async def unembedded(self, tenant: str, doc_id: str, model: str, deadline: float) -> Texts | None:
        """Some of its chunks that this model has not embedded; None: it has embedded all."""

        async def read(connection: Any) -> Texts | None:
            return await Vectors(connection, tenant, model).texts(doc_id, CHUNKS_AT_ONCE)

        return await self._over(deadline, read)

    async def add_vectors(
        self, tenant: str, doc_id: str, texts: Texts, vectors: Floats, model: str, deadline: float
    ) -> int:
        """Add what this model has made of these chunks. The corpus version that has it."""

        async def write(connection: Any) -> int:
            held = Vectors(connection, tenant, model)
            if await held.add(doc_id, texts, vectors):
                await held.advance()
            return await _version(connection, tenant)

        return await self._over(deadline, write)

    async def remove(self, tenant: str, doc_id: str, deadline: float) -> int:
        """Remove it, in one transaction. The corpus version without it."""

        async def write(connection: Any) -> int:
            await Corpus(connection, tenant).remove([doc_id])
            return await _version(connection, tenant)

        return await self._over(deadline, write)

    async def _fetch(self, tenant: str, deadline: float, sql: str, *arguments: object) -> list[Any]:
        async def read(connection: Any) -> list[Any]:
            async with locked(connection, WRITER, tenant):
                rows: list[Any] = await connection.fetch(sql, *arguments)
            return rows

        return await self._over(deadline, read)

    async def _over(self, deadline: float, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        session = await self._pool.take(deadline)
        try:
            done = await with_deadline(deadline, _bounded(session.connection, deadline, work))
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
            self._pool.discard(session)  # terminated, and what it had not committed with it
            raise
        self._pool.give_back(session)
        return done


async def _bounded(connection: Any, deadline: float, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """The same for the server: for the session, since a call may have several transactions."""
    left_ms = max(1, math.ceil((deadline - asyncio.get_running_loop().time()) * 1000))
    await connection.execute(f"SET statement_timeout = {left_ms}")
    with suppress(asyncpg.PostgresError):
        await connection.execute(NOTICE)
    return await work(connection)


async def _version(connection: Any, tenant: str) -> int:
    """It may be another writer's by now, and newer: as good for a cache."""
    async with locked(connection, WRITER, tenant):
        return int(await connection.fetchval(VERSION, tenant))
