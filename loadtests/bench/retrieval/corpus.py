"""A tenant with as many chunks as are wanted: generated vectors, and words of which few are common and most are rare.

The vectors lie in clusters, as those of real texts do. They are stored under the name of the embedder that will ask
for them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadtests.bench.vectors import Clustered
from services.retrieval.database import connect
from services.retrieval.minilm import Floats

TENANT = "bench"
IN_A_DOCUMENT = 100
AT_A_TIME = 5_000
WORDS_IN_A_CHUNK = 100
WORDS = ["".join(syllables) for syllables in itertools.product(("ba", "lo", "ri", "ten", "mu"), repeat=6)]
TOO_COMMON = 200  # as many of a language's most common words are in every text, and of no use to a search
CHUNK = ("tenant", "doc_id", "ordinal", "text")
VECTOR = ("tenant", "doc_id", "ordinal", "model", "embedding")
INDEXES = ("vectors_by_distance", "words_by_key")  # made at the end, at once: row by row it takes several times as long


class Prose:
    """Texts of words drawn as languages draw them, by rank; the most common ones, in every text, are left out."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        weights = 1.0 / np.arange(TOO_COMMON + 1, TOO_COMMON + len(WORDS) + 1)
        self._upto = np.cumsum(weights / weights.sum())

    def text(self, words: int) -> str:
        drawn = np.searchsorted(self._upto, self._random.random(words))
        return " ".join(WORDS[min(place, len(WORDS) - 1)] for place in drawn)


async def fill(url: str, rows: int, model: str, source: Clustered) -> float:
    """Seconds it took to store that many chunks and to make the indexes over them."""
    began = time.perf_counter()
    connection = await connect(url, timeout_s=10.0, application="bench")
    try:
        making = [await connection.fetchval("SELECT pg_get_indexdef($1::text::regclass)", name) for name in INDEXES]
        await connection.execute(f"DROP INDEX {', '.join(INDEXES)}")
        await connection.execute("INSERT INTO corpora (tenant, version) VALUES ($1, 1)", TENANT)
        prose = Prose(len(WORDS))
        for first in range(0, rows, AT_A_TIME):
            numbers = range(first, min(first + AT_A_TIME, rows))
            await _store(connection, numbers, model, source.draw(len(numbers)), prose)
        await connection.execute("SET maintenance_work_mem = '512MB'; SET max_parallel_maintenance_workers = 0")
        for statement in making:
            await connection.execute(statement)
        await connection.execute("ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    return time.perf_counter() - began


async def _store(connection: Any, numbers: range, model: str, vectors: Floats, prose: Prose) -> None:
    documents = sorted({_place(number)[0] for number in numbers})
    titled = [(TENANT, doc_id, "bench", doc_id, "hash", 1) for doc_id in documents]
    columns = ("tenant", "doc_id", "root", "title", "content_hash", "version")
    chunks = [(TENANT, *_place(number), prose.text(WORDS_IN_A_CHUNK)) for number in numbers]
    made = [(TENANT, *_place(number), model, vector) for number, vector in zip(numbers, vectors, strict=True)]
    async with connection.transaction():
        await connection.copy_records_to_table("documents", columns=columns, records=titled)
        await connection.copy_records_to_table("chunks", columns=CHUNK, records=chunks)
        await connection.copy_records_to_table("vectors", columns=VECTOR, records=made)


def _place(number: int) -> tuple[str, int]:
    return f"d{number // IN_A_DOCUMENT:06d}", number % IN_A_DOCUMENT


def questions(seed: int = 7) -> Iterator[str]:
    """Questions in the corpus's own words, none of them twice."""
    prose = Prose(seed)
    for number in itertools.count(1):
        yield f"{prose.text(8)} {number}?"
