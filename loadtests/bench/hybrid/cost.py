"""What the words cost a search: processor time of the server, with them and without, side by side in one connection."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtests.bench.vectors import unit
from services.retrieval.database import Session, connect
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.nearest import DEPTH, way

LIMIT_S = 600.0
TENANT, MODEL = "big", "bench"
TOP_K, REPEATS, FIRST_LEFT_OUT = 5, 40, 10
GRAPH = "vectors_by_distance"
FILL = """
INSERT INTO chunks SELECT $1, 'd', ordinal - 1, text FROM unnest($2::text[]) WITH ORDINALITY AS made (text, ordinal)
"""
ASKED = {
    "a name": "RETRIEVAL_BUDGET_MS",
    "a question": "How does the budget bound the time that a search may take when the database is slow?",
    "only common words": "the router may answer a request of a tenant within its time",
}


@dataclass(frozen=True)
class Cost:
    """Milliseconds of the server's processor: by meaning alone, and with the words as well."""

    way: str
    asked: str
    alone_ms: float
    with_words_ms: float


async def costs(url: str, texts: Sequence[str], rows: int) -> list[Cost]:
    """A tenant with that many chunks, these texts over and over, searched exactly and through the graph."""
    connection = await connect(url, timeout_s=LIMIT_S, application="bench")
    try:
        await connection.execute(f"DROP INDEX {GRAPH}; SET maintenance_work_mem = '256MB'")
        await connection.execute("INSERT INTO corpora VALUES ($1, 1)", TENANT)
        await connection.execute("INSERT INTO documents VALUES ($1, 'd', 'r', 't', 'h', 1)", TENANT)
        await connection.execute(FILL, TENANT, list(itertools.islice(itertools.cycle(texts), rows)), timeout=LIMIT_S)
        vectors = unit(np.random.default_rng(1).standard_normal((rows, DIMENSIONS), dtype=np.float32))
        records = [(TENANT, "d", ordinal, MODEL, vector) for ordinal, vector in enumerate(vectors)]
        columns = ("tenant", "doc_id", "ordinal", "model", "embedding")
        await connection.copy_records_to_table("vectors", columns=columns, records=records, timeout=LIMIT_S)
        await connection.execute(
            f"CREATE INDEX {GRAPH} ON vectors USING hnsw (embedding halfvec_cosine_ops)", timeout=LIMIT_S
        )
        await connection.execute("VACUUM ANALYZE")
        return [
            await _cost(connection, name, exact_up_to, asked, vectors)
            for name, exact_up_to in (("exactly", rows), ("through the graph", 0))
            for asked in ASKED
        ]
    finally:
        await connection.close()


async def _cost(connection: object, name: str, exact_up_to: int, asked: str, vectors: Floats) -> Cost:
    session = Session(connection)
    spent: dict[bool, list[float]] = {False: [], True: []}
    for vector, words in itertools.product(vectors[:REPEATS], (False, True)):
        chosen = way(len(vectors), DEPTH if words else TOP_K, top_k=TOP_K, exact_up_to=exact_up_to, words=words)
        arguments = [TENANT, vector, DEPTH if words else TOP_K, MODEL, *([ASKED[asked], TOP_K] if words else [])]
        before = _processor_ms(connection)
        await session.fetch(LIMIT_S, chosen.sql, *arguments, tenant=TENANT, settings=chosen.settings)
        spent[words].append(_processor_ms(connection) - before)
    alone, both = (statistics.median(spent[words][FIRST_LEFT_OUT:]) for words in (False, True))
    return Cost(name, asked, alone, both)


def _processor_ms(connection: object) -> float:
    """Of the connection's own process at the server, which runs on this machine; of Linux, to the microsecond."""
    pid = connection.get_server_pid()  # type: ignore[attr-defined]  # asyncpg carries no types
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6
