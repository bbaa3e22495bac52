"""The store's reads: the search, and the version and size of each tenant's corpus. (`writing.py` writes.)

A graph search that finds too few rows is repeated exactly (`nearest.py`). A query has two limits: the caller returns at
its deadline, and the server stops at `statement_timeout`, the remaining time, which leaves a sound connection. A server
still silent `GRACE_S` later counts as frozen, and its connection is terminated without the driver's cleanup.

Corpus versions and sizes are read once a second in one query, so that cached results are checked without a query. They
may be about a second behind an ingest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg

from services.contracts.search import Passage
from services.retrieval.database import NO_TENANT, Session
from services.retrieval.deadline import DeadlineExceeded, cancel_and_wait, wait_until
from services.retrieval.embedding_batcher import LatencyEstimate
from services.retrieval.minilm import Floats
from services.retrieval.nearest import DEPTH, EXACT_UP_TO, EXACTLY, EXACTLY_WITH_WORDS, SearchStatement, choose_index
from services.retrieval.pool import ConnectionPool, DatabaseDown, PoolBusy
from services.runtime.log import Log

GRACE_S = 0.25
CORPORA_EVERY_S = 1.0
CORPORA_BY_S = 1.0
MAX_TENANTS = 10_000

CORPORA = SearchStatement("SELECT tenant, version, chunks FROM weir_corpora($1)")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The passages, best first, and their corpus version; None for an empty corpus.

    `effort` is what the search used; an exact search that left nothing out counts as full effort.
    """

    passages: list[Passage]
    corpus_version: int | None
    effort: float = 1.0


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A search: the chosen statement, the exact one that repeats it, and the arguments of both."""

    chosen: SearchStatement
    exactly: SearchStatement
    arguments: tuple[object, ...]
    with_words: bool


class SearchFailed(Exception):
    """The database answered with an error."""


class Store:
    """Searches over a pool of sessions, and the newest known corpus version of each tenant.

    A tenant with more than `exact_up_to` chunks is searched through the graph, unless its share of all chunks is small.
    """

    def __init__(self, pool: ConnectionPool[Session], *, log: Log, exact_up_to: int = EXACT_UP_TO) -> None:
        self._pool = pool
        self._log = log
        self._exact_up_to = exact_up_to
        self._versions: dict[str, int] = {}
        self._chunks: dict[str, int] = {}
        self._all_chunks = 0
        self._takes_s = LatencyEstimate()  # of a search, without the wait for its session
        self._queries: set[asyncio.Task[list[Any]]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self.reached = False

    @property
    def up(self) -> bool:
        """The pool has a connection."""
        return self._pool.open > 0

    @property
    def fault(self) -> str | None:
        """Why there is no connection, once an attempt has failed."""
        return self._pool.fault

    def corpus_version(self, tenant: str) -> int | None:
        """The newest known version, about a second old at most while the database is up; None: none is known."""
        return self._versions.get(tenant)

    def biggest(self) -> str | None:
        return max(self._chunks, key=self._chunks.__getitem__, default=None)

    async def start(self) -> None:
        """Connect in the background. Searches raise `DatabaseDown` until then."""
        self._pool.start()
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="corpus-versions")

    async def stop(self) -> None:
        """Close all connections without waiting for queries."""
        await cancel_and_wait(self._watcher)
        await self._pool.stop()

    async def search(
        self,
        tenant: str,
        vector: Floats,
        top_k: int,
        deadline: float,
        *,
        model: str,
        query: str = "",
        effort: float = 1.0,
    ) -> SearchResult:
        """The `top_k` best chunks of this tenant, within `deadline` of the loop's clock.

        `model` made the vector, which is compared with that model's vectors only. With a `query`, chunks are also found
        by its words and ranked by both. Below full `effort` the words are left out and the graph search is cheaper.

        Raises `DeadlineExceeded`, `DatabaseDown`, `PoolBusy` or `SearchFailed`.
        """
        plan = self.query_for(tenant, vector, top_k, model=model, query=query, effort=effort)
        chosen = plan.chosen
        rows = await self._query(deadline, tenant, chosen, *plan.arguments)
        if chosen is not plan.exactly and _near(rows, plan.with_words) < min(top_k, self._chunks.get(tenant, 0)):
            chosen = plan.exactly
            rows = await self._query(deadline, tenant, chosen, *plan.arguments)
        version = rows[0]["corpus_version"] if rows else None
        if version is not None:
            self.learn(tenant, version)
        whole = chosen is plan.exactly and plan.with_words == bool(query)
        return SearchResult([_passage(row) for row in rows], version, 1.0 if whole else effort)

    def query_for(
        self, tenant: str, vector: Floats, top_k: int, *, model: str, query: str = "", effort: float = 1.0
    ) -> StoreQuery:
        """The statements for a search: with words if there is a query and full effort."""
        with_words = bool(query) and effort >= 1
        depth = max(top_k, DEPTH) if with_words else top_k
        text = query.replace("\0", " ")  # not allowed in a text of PostgreSQL
        words = [text, top_k] if with_words else []
        chosen = choose_index(
            self._chunks.get(tenant, 0), depth,
            top_k=top_k, all_chunks=self._all_chunks, exact_up_to=self._exact_up_to, effort=effort, words=with_words,
        )  # fmt: skip
        exactly = EXACTLY_WITH_WORDS if with_words else EXACTLY
        return StoreQuery(chosen, exactly, (tenant, vector, depth, model, *words), with_words)

    async def _query(self, deadline: float, tenant: str, statement: SearchStatement, *arguments: object) -> list[Any]:
        if asyncio.get_running_loop().time() >= deadline:
            raise DeadlineExceeded
        session = await self._pool.take(deadline, 0.0 if statement is CORPORA else self._takes_s.value)
        task = asyncio.get_running_loop().create_task(self._run(session, deadline, tenant, statement, *arguments))
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)
        return await wait_until(deadline, task)

    async def _run(
        self, session: Session, deadline: float, tenant: str, statement: SearchStatement, *arguments: object
    ) -> list[Any]:
        """Run the query and return the session to the pool, which may be after the caller has gone."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        limit_s = deadline - began
        fetching = loop.create_task(
            session.fetch(limit_s, statement.sql, *arguments, tenant=tenant, settings=statement.settings)
        )
        try:
            rows = await wait_until(deadline + GRACE_S, fetching)
        except asyncpg.QueryCanceledError:
            self._pool.give_back(session)
            self._takes_s.record(loop.time() - began)  # a lower bound
            raise DeadlineExceeded from None
        except asyncpg.PostgresError as error:
            self._pool.give_back(session)
            raise SearchFailed(type(error).__name__) from None
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            self._pool.discard(session)
            raise SearchFailed(type(error).__name__) from None
        except BaseException:
            self._pool.discard(session)  # ends the fetch, too
            raise
        self._pool.give_back(session)
        if statement is not CORPORA:
            self._takes_s.record(loop.time() - began)
        return rows

    async def _watch(self) -> None:
        """Read all corpora's versions and sizes once a second, which also shows that the database answers."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                rows = await self._query(loop.time() + CORPORA_BY_S, NO_TENANT, CORPORA, MAX_TENANTS)
                self._chunks = {row["tenant"]: row["chunks"] for row in rows}
                self._all_chunks = sum(self._chunks.values())
                for row in rows:
                    self.learn(row["tenant"], row["version"])
                self.reached = True
            except DeadlineExceeded:
                self._pool.discard_idle()
            except SearchFailed as error:
                self._log.warning("corpus versions cannot be read", error=str(error))
            except (DatabaseDown, PoolBusy):
                pass  # the pool has logged it
            await asyncio.sleep(CORPORA_EVERY_S if self.reached else CORPORA_EVERY_S / 20)

    def learn(self, tenant: str, version: int) -> None:
        """Note a corpus version that was read, or that a writer of this process made."""
        known = self._versions.get(tenant)
        if known is None and len(self._versions) >= MAX_TENANTS:
            self._versions.pop(next(iter(self._versions)))
        self._versions[tenant] = version if known is None else max(known, version)


def _near(rows: list[Any], with_words: bool) -> int:
    """How many rows were found by meaning, whether or not they are among the best."""
    if with_words:
        return int(rows[0]["near"]) if rows else 0
    return len(rows)


def _passage(row: Any) -> Passage:
    return Passage(
        chunk_id=f"{row['doc_id']}#{row['ordinal']}",
        doc_id=row["doc_id"],
        version=row["version"],
        text=row["text"],
        distance=row["distance"],
    )
