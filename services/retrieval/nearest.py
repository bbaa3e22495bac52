"""How a tenant's nearest chunks are found: exactly in a small tenant, through a graph (HNSW) in a big one.

docs/decisions/031-exact-or-a-graph-by-size.md and docs/decisions/034-hybrid-ranking.md give the reasons. In short:

- The graph holds the chunks of all tenants and the filter comes after it, so the scan is iterative, and bounded. It
  returns rows only roughly in order, so OVERFETCH times as many are fetched and the nearest kept.
- With words (words.sql), both lists are merged by reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): a chunk
  scores 1 / (RRF_K + rank) in each. Only the merged best are read whole, which costs more than to find them.
- This module chooses by size and share, not PostgreSQL's planner: no graph can serve the exact statement, and with
  sorting disabled only the graph can serve the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

EXACT_UP_TO = 8_000  # chunks; the default of EXACT_SEARCH_CHUNKS
EF_SEARCH = 100  # hnsw.ef_search, candidates of a graph search at full effort; measured in docs/results/recall.md
OVERFETCH = 4  # rows fetched for each requested one, at full effort; measured there, too
IN_ORDER_FACTOR = 2  # candidates that hold this many times the requested rows come in order: no overfetch
MAX_SCAN_TUPLES = 200_000  # pgvector's 20,000 return too few rows to a tenant with a small share
SCAN_MEMORY_TIMES = 8  # of work_mem; the scan ends when this is used up
DEPTH = 20  # least number of passages by meaning, and by words, that are ranked
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
"""  # the sum again: PostgreSQL trusts the graph's order and would only sort ties
_SEARCH = """
SELECT nearest.doc_id, nearest.ordinal, chunks.text, nearest.distance, documents.version,
       (SELECT version FROM corpora WHERE tenant = $1) AS corpus_version
FROM ({nearest}) AS nearest
JOIN chunks ON chunks.tenant = $1 AND chunks.doc_id = nearest.doc_id AND chunks.ordinal = nearest.ordinal
JOIN documents ON documents.tenant = $1 AND documents.doc_id = nearest.doc_id
ORDER BY nearest.distance, nearest.doc_id, nearest.ordinal
"""
# MATERIALIZED, so that the join compares with columns: under row-level security a comparison with an expression that is
# not leak-proof cannot use an index. LATERAL, so that every plan looks passages up row by row.
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

# Where only the graph may be used, a generic plan is as good as a custom one, which takes half as long as the search.
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

    `depth`: rows that the search by meaning returns. `top_k`: how many of those must be the nearest (0: all). `effort`
    (above 0, at most 1) scales `ef_search` and the overfetch; neither falls below `depth`. `exact_up_to`: the number of
    chunks up to which the exact search is faster.

    With `words` the statement takes the query and `top_k` as its last arguments, finds up to `depth` rows by meaning
    and as many by words, and returns the `top_k` best.
    """
    top_k, all_chunks = top_k or depth, max(chunks, all_chunks)
    ef_search = max(depth, math.ceil(EF_SEARCH * effort))
    in_order = ef_search * chunks >= IN_ORDER_FACTOR * top_k * all_chunks  # enough candidates are the tenant's
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

    Without this, a query far from the tenant's chunks would visit nearly all chunks of other tenants first.
    """
    if exact_up_to == 0:
        return MAX_SCAN_TUPLES
    return min(MAX_SCAN_TUPLES, math.ceil(2 * EF_SEARCH * chunks / exact_up_to))


def _max_exact_chunks(chunks: int, all_chunks: int, rows: int, exact_up_to: int) -> float:
    """The number of chunks up to which an exact search is faster. It grows with the candidates that the graph would
    visit: at least EF_SEARCH, at which `exact_up_to` was measured, and as many as hold `rows` rows of the tenant.
    """
    candidates = rows * all_chunks / max(1, chunks)
    return exact_up_to * max(1.0, candidates / EF_SEARCH)
