"""A tenant with many chunks, made up: this project's own words in its own order, cut anywhere, and vectors near theirs.

Embedding tens of thousands of chunks would take minutes. So a few hundred are embedded, and the others' vectors lie
around those: as near to questions about the texts as vectors of real chunks are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # carries no types

from loadtests.bench.vectors import unit
from loadtests.paths import ROOT
from services.retrieval.database import connect
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM, find_model

TENANT = "big"
EMBEDDED, EMBEDDED_WORDS = 200, 25
SPREAD = 0.6  # length of what is added to the vector of one that was embedded, which has length 1
CHUNK_WORDS = 150
CHUNKS_PER_DOCUMENT = 20
DOCS = ROOT / "docs"
GRAPH = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam WHERE amname = 'hnsw'
"""
SIZES = """
SELECT relation.relname AS name, coalesce(indrelid::regclass::text, relation.relname) AS of_table,
       (CASE relation.relkind WHEN 'i' THEN pg_relation_size(relation.oid) ELSE pg_table_size(relation.oid) END) / 1e6
       ::float AS mb
FROM pg_class AS relation LEFT JOIN pg_index ON indexrelid = relation.oid
WHERE relation.relnamespace = current_schema()::regnamespace AND relation.relkind IN ('r', 'i')
ORDER BY of_table, relation.relkind DESC, name
"""
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*[.,;:?]?")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a table or an index takes in the database."""

    name: str
    of_table: str
    mb: float


async def fill(url: str, rows: int, seed: int) -> list[Taken]:
    """Store the tenant's chunks as the database's owner; the graph is made at the end, which is faster."""
    texts = list(_texts(rows, random.Random(seed)))
    model = MiniLM(find_model(""))
    vectors = _vectors(model, texts, seed)
    connection = await connect(url, timeout_s=10.0, application="bench")
    try:
        [(graph, made_by)] = await connection.fetch(GRAPH)
        await connection.execute(f"DROP INDEX {graph}")
        await _store(connection, texts, vectors, model.fingerprint)
        await connection.execute("SET maintenance_work_mem = '256MB'; SET max_parallel_maintenance_workers = 0")
        await connection.execute(made_by)
        await connection.execute("VACUUM ANALYZE")
        return [Taken(**row) for row in await connection.fetch(SIZES)]
    finally:
        await connection.close()


def _texts(rows: int, chance: random.Random) -> Iterator[str]:
    words = [word for page in sorted(DOCS.rglob("*.md")) for word in _WORD.findall(page.read_text(encoding="utf-8"))]
    for _ in range(rows):
        first = chance.randrange(len(words) - CHUNK_WORDS)
        yield " ".join(words[first : first + CHUNK_WORDS])


def _vectors(model: MiniLM, texts: list[str], seed: int) -> Floats:
    openings = (" ".join(text.split()[:EMBEDDED_WORDS]) for text in texts[:EMBEDDED])
    with threadpool_limits(1, user_api="blas"):  # more would wait for one another on a machine that is busy
        middles = np.concatenate([model.embed([model.tokenize(opening)]) for opening in openings])
    chance = np.random.default_rng(seed)
    noise = chance.standard_normal((len(texts), DIMENSIONS), dtype=np.float32) * np.float32(SPREAD / DIMENSIONS**0.5)
    around = middles[chance.integers(0, len(middles), len(texts))] + noise
    return unit(around)


async def _store(connection: Any, texts: list[str], vectors: Floats, model: str) -> None:
    places = [(f"document-{row // CHUNKS_PER_DOCUMENT}", row % CHUNKS_PER_DOCUMENT) for row in range(len(texts))]
    documents = dict.fromkeys(doc_id for doc_id, _ in places)
    async with connection.transaction():
        await connection.execute("INSERT INTO corpora (tenant, version) VALUES ($1, 1)", TENANT)
        await connection.copy_records_to_table(
            "documents",
            columns=("tenant", "doc_id", "root", "title", "content_hash", "version"),
            records=[(TENANT, doc_id, "bench", doc_id, "", 1) for doc_id in documents],
        )
        await connection.copy_records_to_table(
            "chunks",
            columns=("tenant", "doc_id", "ordinal", "text"),
            records=[(TENANT, *place, text) for place, text in zip(places, texts, strict=True)],
        )
        await connection.copy_records_to_table(
            "vectors",
            columns=("tenant", "doc_id", "ordinal", "model", "embedding"),
            records=[(TENANT, *place, model, vector) for place, vector in zip(places, vectors, strict=True)],
        )
