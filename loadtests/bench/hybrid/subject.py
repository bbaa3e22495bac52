"""The database that is asked: Weir's own schema and searches, over an embedded PostgreSQL."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.contracts.search import Passage
from services.retrieval.database import Session, connect
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM
from services.retrieval.pool import Pool
from services.retrieval.store import Store
from services.retrieval.writing import Corpus
from services.runtime.log import Log

TENANT = "bench"
LIMIT_S = 60.0
EMBED_AT_ONCE = 16
BY_WORDS = """
SELECT found.doc_id, chunks.text FROM weir_search_words($1, $2) AS found
JOIN chunks ON chunks.doc_id = found.doc_id AND chunks.ordinal = found.ordinal ORDER BY found.score DESC, 1, 2
"""


class Subject:
    """One connection for what is not a search, and a store for what is."""

    def __init__(self, url: str, model: MiniLM) -> None:
        self._url = url
        self._model = model
        self._connection: Any = None
        self._store: Any = None
        self._log = Log("bench", stream=io.BytesIO())

    async def start(self, documents: Mapping[str, Sequence[str]]) -> None:
        """Put these documents in, and connect."""
        self._connection = await connect(self._url, timeout_s=LIMIT_S, application="bench")
        made = iter(self.embed([text for texts in documents.values() for text in texts]))
        for doc_id, texts in documents.items():
            vectors = np.stack([next(made) for _ in texts])
            await Corpus(self._connection, TENANT).put(
                doc_id, root="docs", title=doc_id, content_hash="", texts=texts, vectors=vectors,
                model=self._model.fingerprint,
            )  # fmt: skip
        await self._connection.execute("ANALYZE")

        async def session() -> Session:
            return Session(await connect(self._url, timeout_s=LIMIT_S, application="bench"))

        self._store = Store(Pool(session, size=1, max_waiting=8, log=self._log, chance=random.Random(1)), log=self._log)
        await self._store.start()
        async with asyncio.timeout(LIMIT_S):
            while self._store.corpus_version(TENANT) is None:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Leave the database."""
        await self._store.stop()
        await self._connection.close()
        self._log.close()

    def embed(self, texts: Sequence[str]) -> Floats:
        """Their vectors."""
        tokens = [self._model.tokenize(text) for text in texts]
        made = np.zeros((len(texts), DIMENSIONS), np.float32)
        by_length = sorted(
            range(len(texts)), key=lambda number: len(tokens[number])
        )  # what is alike in length is quick
        for at in range(0, len(texts), EMBED_AT_ONCE):
            some = by_length[at : at + EMBED_AT_ONCE]
            made[some] = self._model.embed([tokens[number] for number in some])
        return made

    async def search(self, asked: str, top_k: int, *, words: bool) -> list[tuple[str, str]]:
        """Document and text of each passage, as retrieval finds them."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        found = await self._store.search(
            TENANT, self.embed([asked])[0], top_k, deadline, model=self._model.fingerprint, query=asked if words else ""
        )
        passages: list[Passage] = found.passages
        return [(each.doc_id, each.text) for each in passages]

    async def by_words(self, asked: str, top_k: int) -> list[tuple[str, str]]:
        """The same by words alone."""
        rows = await Session(self._connection).fetch(LIMIT_S, BY_WORDS, asked, top_k, tenant=TENANT)
        return [(row["doc_id"], row["text"]) for row in rows]
