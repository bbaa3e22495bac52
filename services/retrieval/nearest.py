"""How the nearest chunks of a tenant are found: exactly in a small tenant, through a graph (HNSW) in a big one.

An exact search computes the distance to every chunk of the tenant: its time grows with their number, and it misses
nothing. A graph search takes a time that hardly grows, but the graph holds the chunks of all tenants, and the tenant's
are filtered out afterwards. So the scan goes on until it has enough of them (`iterative_scan`), and a bound limits it.
A search of a big tenant that finds too few through the graph is repeated exactly: see `store.py`.

A relaxed scan yields the tenant's chunks only roughly in order, and the first ten are not the nearest ten. So more rows
are fetched than are asked for (OVERFETCH), and the nearest of those are taken. The smaller the tenant's share of all
chunks, the more steps that takes, and the larger a tenant can be before the exact search is the slower one.

The same statement can also find chunks that have the query's rare words (words.sql), as many again, and merge both
lists by reciprocal rank (Cormack, Clarke and Buettcher 2009). Distances and word weights have no common scale; ranks
have. A chunk counts 1 / (k + rank) for each list that holds it, so a chunk near the top of one list ranks high, and a
chunk in both ranks higher. k = 60 is the authors' value: it keeps the first rank of one list from outweighing
everything. Only the merged best chunks are looked up whole, because that costs more than to find them.

This module decides between the two searches by size and share, not PostgreSQL's planner: the exact statement is written
so that no graph can serve it, and the other runs with sorting disabled, so that only the graph can serve it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

EXACT_UP_TO = 8_000  # chunks; EXACT_SEARCH_CHUNKS, where it is set
EF_SEARCH = (
    100  # hnsw.ef_search, candidates that a graph search keeps at full effort; measured in docs/results/recall.md
)
OVERFETCH = 4  # rows fetched for each that is asked for, at full effort; measured there, too
IN_ORDER_FACTOR = 2  # where the candidates hold this many times the rows asked for, they come in order: no overfetch
MAX_SCAN_TUPLES = 200_000  # pgvector's 20,000 return too few rows to a tenant with a small share
SCAN_MEMORY_TIMES = 8  # of work_mem; the scan ends when this is used up
DEPTH = 20  # passages by meaning, and as many by words, at least, that one ranking is made of
RRF_K = 60

_ROWS = """
    SELECT doc_id, ordinal, embedding <=> $2 AS distance
    FROM vectors WHERE tenant = $1 AND model = $4
    ORDER BY {order} LIMIT {limit}
"""
_EXACTLY = _ROWS.format(order="(embedding <=> $2) + 0, doc_id, ordinal", limit="$3")  # no graph is ordered by a sum
_BY_GRAPH = f"""
    SELECT doc_id, ordinal, distance + 0 AS distance
    FROM ({_ROWS.format(order="embedding <=> $2", limit="current_setting('weir.rows_met')::bigint")}) AS met
    ORDER BY distance + 0, doc_id, ordinal LIMIT $3
"""  # the sum again: PostgreSQL takes the graph's order for a right one, and would sort no more than ties
_SEARCH = """
SELECT nearest.doc_id, nearest.ordinal, chunks.text, nearest.distance, documents.version,
       (SELECT version FROM corpora WHERE tenant = $1) AS corpus_version
FROM ({nearest}) AS nearest
JOIN chunks ON chunks.tenant = $1 AND chunks.doc_id = nearest.doc_id AND chunks.ordinal = nearest.ordinal
JOIN documents ON documents.tenant = $1 AND documents.doc_id = nearest.doc_id
ORDER BY nearest.distance, nearest.doc_id, nearest.ordinal
"""
# Materialized, so that what is looked up is a column and no expression: under row-level security a comparison with an
# expression that is not leak-proof is no key for an index. LATERAL, so that it is looked up row by row in any plan.
_SEARCH_WITH_WORDS = """
WITH nearest AS MATERIALIZED (
    SELECT doc_id, ordinal, row_number() OVER (ORDER BY distance, doc_id, ordinal) AS place FROM ({nearest}) AS near
),
worded AS MATERIALIZED (
    SELECT doc_id, ordinal, row_number() OVER (ORDER BY score DESC, doc_id, ordinal) AS place
    FROM weir_search_words($5, $3)
),
best AS MATERIALIZED (
    SELECT doc_id, ordinal, nearest.place AS near_place, worded.place AS word_place,
           coalesce(1 / ({k} + nearest.place::double precision), 0)
         + coalesce(1 / ({k} + worded.place::double precision), 0) AS score
    FROM nearest FULL JOIN worded USING (doc_id, ordinal)
    ORDER BY score DESC, near_place NULLS LAST, word_place LIMIT $6
)
SELECT best.doc_id, best.ordinal, passage.text, passage.distance, passage.version,
       (SELECT count(*) FROM nearest) AS near,
       (SELECT version FROM corpora WHERE tenant = $1) AS corpus_version
FROM best CROSS JOIN LATERAL (
    SELECT chunks.text, vectors.embedding <=> $2 AS distance, documents.version
    FROM vectors
    JOIN chunks ON chunks.tenant = $1 AND chunks.doc_id = best.doc_id AND chunks.ordinal = best.ordinal
    JOIN documents ON documents.tenant = $1 AND documents.doc_id = best.doc_id
    WHERE vectors.tenant = $1 AND vectors.doc_id = best.doc_id AND vectors.ordinal = best.ordinal
      AND vectors.model = $4
    LIMIT 1
) AS passage
ORDER BY best.score DESC, best.near_place NULLS LAST, best.word_place
"""
EXACT = _SEARCH.format(nearest=_EXACTLY)
EXACT_WITH_WORDS = _SEARCH_WITH_WORDS.format(nearest=_EXACTLY, k=RRF_K)
APPROXIMATE = _SEARCH.format(nearest=_BY_GRAPH)
APPROXIMATE_WITH_WORDS = _SEARCH_WITH_WORDS.format(nearest=_BY_GRAPH, k=RRF_K)

# A plan for any arguments is as good as one for these where only the graph may be used, and making it takes as long as
# half the search.
FORCE_GRAPH = {
    "enable_sort": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}


@dataclass(frozen=True, slots=True)
class SearchStatement:
    """A SQL statement, and the PostgreSQL settings of its transaction."""

    sql: str
    settings: Mapping[str, str] = field(default_factory=dict)


EXACTLY = SearchStatement(EXACT)
EXACTLY_WITH_WORDS = SearchStatement(EXACT_WITH_WORDS)


def choose_index(
    chunks: int,
    depth: int,
    *,
    top_k: int = 0,
    all_chunks: int = 0,
    exact_up_to: int = EXACT_UP_TO,
    effort: float = 1.0,
    words: bool = False,
) -> SearchStatement:
    """The statement for a search of a tenant with `chunks` chunks, of `all_chunks` in the database.

    `depth`: how many rows the search by meaning returns. `top_k`: how many of those must be the nearest (0: all).
    `effort` (above 0, at most 1) scales `ef_search` and the overfetch; neither falls below `depth`. `exact_up_to`: up
    to how many chunks the exact search is the faster one.

    With `words` the statement takes the query and `top_k` as its last arguments, finds up to `depth` rows by meaning
    and as many by words, and returns the `top_k` best.
    """
    top_k, all_chunks = top_k or depth, max(chunks, all_chunks)
    ef_search = max(depth, math.ceil(EF_SEARCH * effort))
    in_order = (
        ef_search * chunks >= IN_ORDER_FACTOR * top_k * all_chunks
    )  # the candidates hold enough of the tenant's rows
    rows = depth if in_order else max(depth, math.ceil(OVERFETCH * top_k * effort))
    if chunks <= _max_exact_chunks(chunks, all_chunks, rows, exact_up_to):
        return EXACTLY_WITH_WORDS if words else EXACTLY
    return SearchStatement(
        APPROXIMATE_WITH_WORDS if words else APPROXIMATE,
        {
            **FORCE_GRAPH,
            "weir.rows_met": str(rows),
            "hnsw.iterative_scan": "relaxed_order",
            "hnsw.ef_search": str(ef_search),
            "hnsw.max_scan_tuples": str(_max_scan_tuples(chunks, exact_up_to)),
            "hnsw.scan_mem_multiplier": str(SCAN_MEMORY_TIMES),
        },
    )


def _max_scan_tuples(chunks: int, exact_up_to: int) -> int:
    """How many candidates a graph scan may visit: about twice the time of an exact search.

    A query far from all chunks of the tenant visits other tenants' chunks first, and would hardly end.
    """
    if exact_up_to == 0:
        return MAX_SCAN_TUPLES
    return min(MAX_SCAN_TUPLES, math.ceil(2 * EF_SEARCH * chunks / exact_up_to))


def _max_exact_chunks(chunks: int, all_chunks: int, rows: int, exact_up_to: int) -> float:
    """Up to how many chunks an exact search is the faster one: grows with the candidates that the graph would visit.

    Those are at least EF_SEARCH (what `exact_up_to` is measured with), and as many as hold `rows` of the tenant's.
    """
    candidates = rows * all_chunks / max(1, chunks)
    return exact_up_to * max(1.0, candidates / EF_SEARCH)
