"""The first question is not a cold one: what is slow only once has been done before the service says that it is ready.

A database session pays for its first search: the statement is parsed and planned, the catalogs are read and pgvector's
library is loaded. The first search of all brings the index and its rows into memory as well. So every session is made
to search, for the tenant with the most chunks and for nobody: between them they use each way of searching that this
database has a use for. (The embedder warms itself.)

It is an attempt, not a condition: a database that does not answer in a few rounds will be as slow to the first client,
and a service that is never ready serves nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from services.retrieval.deadline import Late
from services.retrieval.embedder import WARM_UP, Embedder, EmbedderFailed, EmbedderFull
from services.retrieval.minilm import Floats
from services.retrieval.pool import Busy, Down
from services.retrieval.store import Found, SearchFailed

ROUND_S = 5.0
MOST_ROUNDS = 3
LOOK_EVERY_S = 0.02
TOP_K = 5
NOBODY = ""


class Warmed(Protocol):
    """The store, as far as it can be warmed."""

    @property
    def reached(self) -> bool: ...

    def biggest(self) -> str | None: ...

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
    ) -> Found: ...


class Warming:
    """Searches once on every session, after the embedder is warm and the database was reached."""

    def __init__(self, embedder: Embedder, store: Warmed, *, sessions: int) -> None:
        self.done = False
        self._embedder = embedder
        self._store = store
        self._sessions = sessions
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the background; the embedder is warm by now."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="warming")

    async def stop(self) -> None:
        """Leave it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while not self._store.reached:  # noqa: ASYNC110 - asked fifty times a second, once in a life
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            await self._warm()
        except (EmbedderFailed, EmbedderFull):
            pass  # its next caller is told so
        finally:
            self.done = True

    async def _warm(self) -> None:
        vector: Floats = (await self._embedder.embed([WARM_UP])).vectors[0]
        tenants = [tenant for tenant in (self._store.biggest(), NOBODY) if tenant is not None]
        for _ in range(MOST_ROUNDS):
            if await self._round(vector, tenants):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _round(self, vector: Floats, tenants: Sequence[str]) -> bool:
        """Whether every session has answered. All at once, so that no session answers for another."""
        deadline = asyncio.get_running_loop().time() + ROUND_S
        model = self._embedder.fingerprint
        for tenant in tenants:
            searches = (
                self._store.search(tenant, vector, TOP_K, deadline, model=model, query=WARM_UP)
                for _ in range(self._sessions)
            )
            for outcome in await asyncio.gather(*searches, return_exceptions=True):
                if isinstance(outcome, Late | Down | Busy | SearchFailed):
                    return False
                if isinstance(outcome, BaseException):
                    raise outcome
        return True
