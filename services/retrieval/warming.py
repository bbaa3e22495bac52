"""Warms every database session with searches before the service reports ready.

A session's first search is slow: it parses and plans the statement, reads the catalogs and loads pgvector. The first of
all also brings index and rows into memory. So each session searches for the tenant with the most chunks and for no
tenant, which together use both the graph and the exact search where the database has a use for them. A session that
replaces a lost one searches before it is lent (`warm`). The embedder warms itself.

Warming is best effort: after MAX_ROUNDS the service reports ready anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from services.retrieval.database import NO_TENANT, Session
from services.retrieval.deadline import DeadlineExceeded, cancel_and_wait, with_deadline
from services.retrieval.embedder import WARM_UP, Embedder, EmbedderFailed, EmbedderFull
from services.retrieval.minilm import Floats
from services.retrieval.pool import DatabaseDown, PoolBusy
from services.retrieval.store import GRACE_S, SearchFailed, Store

ROUND_S = 5.0
SESSION_S = 1.0
MAX_ROUNDS = 3
LOOK_EVERY_S = 0.02
TOP_K = 5


class Warming:
    """Searches once on every session, after the embedder is warm and the database was reached."""

    def __init__(self, embedder: Embedder, store: Store, *, sessions: int) -> None:
        self.done = False
        self._embedder = embedder
        self._store = store
        self._sessions = sessions
        self._task: asyncio.Task[None] | None = None
        self._vector: Floats | None = None

    def start(self) -> None:
        """Start warming in the background. The embedder must be warm."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="warming")

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def warm(self, session: Session) -> None:
        """Search once per tenant on a new session; does nothing before the first round has its vector.

        A database error, a timeout included, is no reason not to lend the session. A session that does not answer is
        lost: raises TimeoutError, or what the driver raises.
        """
        if self._vector is None:
            return
        loop = asyncio.get_running_loop()
        for tenant in self._tenants():
            search = self._store.query_for(tenant, self._vector, TOP_K, model=self._embedder.fingerprint, query=WARM_UP)
            fetching = session.fetch(
                SESSION_S, search.chosen.sql, *search.arguments, tenant=tenant, settings=search.chosen.settings
            )
            try:
                await with_deadline(loop.time() + SESSION_S + GRACE_S, fetching)
            except asyncpg.PostgresError:
                return
            except DeadlineExceeded:
                raise TimeoutError("the first search was not answered") from None

    def _tenants(self) -> list[str]:
        return [tenant for tenant in (self._store.biggest(), NO_TENANT) if tenant is not None]

    async def _run(self) -> None:
        while not self._store.reached:  # noqa: ASYNC110 - polled fifty times a second, only at the start
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            await self._warm()
        except (EmbedderFailed, EmbedderFull):
            pass  # its next caller gets the error
        finally:
            self.done = True

    async def _warm(self) -> None:
        self._vector = (await self._embedder.embed([WARM_UP])).vectors[0]
        for _ in range(MAX_ROUNDS):
            if await self._round(self._vector, self._tenants()):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _round(self, vector: Floats, tenants: Sequence[str]) -> bool:
        """Whether every session has answered. All search at once, so that each session gets a search."""
        deadline = asyncio.get_running_loop().time() + ROUND_S
        model = self._embedder.fingerprint
        for tenant in tenants:
            searches = (
                self._store.search(tenant, vector, TOP_K, deadline, model=model, query=WARM_UP)
                for _ in range(self._sessions)
            )
            for outcome in await asyncio.gather(*searches, return_exceptions=True):
                if isinstance(outcome, DeadlineExceeded | DatabaseDown | PoolBusy | SearchFailed):
                    return False
                if isinstance(outcome, BaseException):
                    raise outcome
        return True
