"""Checks that the model fits the database, at the start and every RECHECK_EVERY_S.

Vectors of another size cannot be searched: the service does not start if the database answers by then; otherwise the
fault is logged once it does. Chunks that this model has not embedded are not found: a warning says what to do, a metric
counts them, and the rest is served. The database keeps these counts, so a check reads a few rows.
"""

from __future__ import annotations

import asyncio
from math import nan
from typing import Any

from services.retrieval.database import NO_TENANT, Session
from services.retrieval.deadline import DeadlineExceeded, cancel_and_wait, with_deadline
from services.retrieval.embedder import Embedder
from services.retrieval.pool import ConnectionPool, DatabaseDown, PoolBusy
from services.retrieval.store import Store
from services.retrieval.vectors import ALL_TENANTS, COLUMN_DIMENSIONS, UNEMBEDDED, incompatibility
from services.runtime.log import Log
from services.runtime.settings import EXIT_BAD_SETTINGS
from services.runtime.starting import CannotStart

QUERY_TIMEOUT_S = 2.0
RETRY_EVERY_S = 0.5
RECHECK_EVERY_S = 30.0


class IncompatibleModel(CannotStart):
    """The database holds vectors of another size than this model's; the message says what to do."""

    exit_status = EXIT_BAD_SETTINGS


class CompatibilityCheck:
    """Checks until the first answer, then periodically. `unembedded_chunks` is NaN until then."""

    def __init__(self, embedder: Embedder, pool: ConnectionPool[Session], store: Store, log: Log) -> None:
        self._embedder = embedder
        self._pool = pool
        self._store = store
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self.done = False
        self.unembedded_chunks = nan

    async def start(self) -> None:
        """Check now if the database was reached, else as soon as it is. Raises IncompatibleModel."""
        if self._store.reached:
            await self._check_once()
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="compatibility")

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def _watch(self) -> None:
        try:
            while True:
                await asyncio.sleep(RECHECK_EVERY_S if self.done else RETRY_EVERY_S)
                if self._store.reached:
                    await self._check_once()
        except IncompatibleModel as fault:
            self._log.error("the model does not match the database: no search can succeed", error=str(fault))

    async def _check_once(self) -> None:
        """A database that does not answer is asked again later."""
        model = self._embedder
        try:
            ((held,),) = await self._query(COLUMN_DIMENSIONS)
            tenants = await self._query(UNEMBEDDED, model.fingerprint, ALL_TENANTS)
        except (DatabaseDown, PoolBusy, DeadlineExceeded):
            return
        self.done = True
        if fault := incompatibility(held, model.name):
            raise IncompatibleModel(fault)
        before, self.unembedded_chunks = self.unembedded_chunks, sum(row["chunks"] for row in tenants)
        if self.unembedded_chunks and not before > 0:
            self._log.warning(
                "chunks were not embedded by this model and are not found",
                model=model.name, tenants=len(tenants),
                chunks=self.unembedded_chunks, remedy="weir ingest --reembed",
            )  # fmt: skip

    async def _query(self, sql: str, *arguments: object) -> list[Any]:
        deadline = asyncio.get_running_loop().time() + QUERY_TIMEOUT_S
        session = await self._pool.take(deadline)
        try:
            rows = await with_deadline(deadline, session.fetch(QUERY_TIMEOUT_S, sql, *arguments, tenant=NO_TENANT))
        except Exception:
            self._pool.discard(session)
            raise DeadlineExceeded from None
        except BaseException:
            self._pool.discard(session)
            raise
        self._pool.give_back(session)
        return rows
