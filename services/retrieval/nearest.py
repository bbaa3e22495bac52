"""How the nearest chunks of a tenant are found: exactly in a small tenant, through a graph (HNSW) in a big one.

An exact search computes the distance to every chunk of the tenant: its time grows with their number, and it misses
nothing. A graph leads to the nearest chunks in a time that hardly grows, but it leads among everybody's chunks, and
the tenant's are picked out afterwards. So it is told to go on until it has enough of them (`iterative_scan`), and a
bound says how far. What a graph does not find in a big tenant is looked for exactly: see `store.py`.

Which of the two is used is decided here, by size, and not by PostgreSQL's estimate: the one statement is written so
that no graph can serve it, and the other is run with sorting discouraged, so that only a graph can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

EXACT_UP_TO = 20_000  # chunks; EXACT_SEARCH_CHUNKS, where it is set
EF_SEARCH = 100  # candidates a graph search keeps at full effort; measured in docs/results/recall.md
MAX_SCAN_TUPLES = 200_000  # pgvector's 20,000 return too few rows to a tenant with a small share
SCAN_MEMORY_TIMES = 8  # of work_mem; where this ends the scan ends as well

_SEARCH = """
SELECT nearest.doc_id, nearest.ordinal, chunks.text, nearest.distance, documents.version,
       (SELECT version FROM corpora WHERE tenant = $1) AS corpus_version
FROM (
    SELECT doc_id, ordinal, embedding <=> $2 AS distance
    FROM vectors WHERE tenant = $1 AND model = $4
    ORDER BY {order} LIMIT $3
) AS nearest
JOIN chunks ON chunks.tenant = $1 AND chunks.doc_id = nearest.doc_id AND chunks.ordinal = nearest.ordinal
JOIN documents ON documents.tenant = $1 AND documents.doc_id = nearest.doc_id
ORDER BY nearest.distance, nearest.doc_id, nearest.ordinal
"""
EXACT = _SEARCH.format(order="(embedding <=> $2) + 0, doc_id, ordinal")  # a sum is not what the graph is ordered by
APPROXIMATE = _SEARCH.format(order="embedding <=> $2")  # in relaxed order: the outer ORDER BY puts it right

ONLY_THE_GRAPH = {"enable_sort": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}


@dataclass(frozen=True, slots=True)
class Way:
    """A statement, and what is set for it in its transaction."""

    sql: str
    settings: Mapping[str, str] = field(default_factory=dict)


EXACTLY = Way(EXACT)


def way(chunks: int, top_k: int, *, exact_up_to: int = EXACT_UP_TO, effort: float = 1.0) -> Way:
    """How to search a tenant with that many chunks; less effort looks at fewer of them, never fewer than `top_k`."""
    if chunks <= exact_up_to:
        return EXACTLY
    ef_search = max(top_k, math.ceil(EF_SEARCH * effort))
    return Way(
        APPROXIMATE,
        {
            **ONLY_THE_GRAPH,
            "hnsw.iterative_scan": "relaxed_order",
            "hnsw.ef_search": str(ef_search),
            "hnsw.max_scan_tuples": str(MAX_SCAN_TUPLES),
            "hnsw.scan_mem_multiplier": str(SCAN_MEMORY_TIMES),
        },
    )
