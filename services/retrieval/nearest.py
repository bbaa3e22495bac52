"""How the nearest chunks of a tenant are found: exactly in a small tenant, through a graph (HNSW) in a big one.

An exact search computes the distance to every chunk of the tenant: its time grows with their number, and it misses
nothing. A graph leads to the nearest chunks in a time that hardly grows, but it leads among everybody's chunks, and
the tenant's are picked out afterwards. So it is told to go on until it has enough of them (`iterative_scan`), and a
bound says how far. What a graph does not find in a big tenant is looked for exactly: see `store.py`.

In that way it meets the tenant's chunks only roughly in order, and the first ten are not the nearest ten. So more are
met than are asked for, and the nearest of those are taken: the smaller the tenant's share of all chunks, the more
steps that takes, and the bigger it may be and still be searched exactly in the same time.

Beside it, and in the same statement, chunks that have the query's rare words are found (words.sql), as many again, and
one ranking is made of both, by reciprocal rank (Cormack, Clarke and Buettcher 2009). A distance and the weight of words
have no scale in common, and their ranks have: a chunk counts 1 / (k + rank) for each list that it is in, so whoever is
far up in one is up, and whoever is in both is further up. k keeps the first place of one list from outweighing
everything: 60 is the authors' figure. Only what is best of all is looked up whole: that costs more than to find it.

Which of the two searches it is to be is decided here, by size and share, and not by PostgreSQL's estimate: the one
statement is written so that no graph can serve it, and the other is run with sorting discouraged, so that only a graph
can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

EXACT_UP_TO = 8_000  # chunks; EXACT_SEARCH_CHUNKS, where it is set
EF_SEARCH = 100  # candidates a graph search keeps at full effort; measured in docs/results/recall.md
MET = 4  # times as many rows as are asked for, at full effort; measured there, too
PLENTY = 2  # times as many of the tenant's rows as are asked for, expected among the first candidates: no more are met
MAX_SCAN_TUPLES = 200_000  # pgvector's 20,000 return too few rows to a tenant with a small share
SCAN_MEMORY_TIMES = 8  # of work_mem; where this ends the scan ends as well
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
ONLY_THE_GRAPH = {
    "enable_sort": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
}


@dataclass(frozen=True, slots=True)
class Way:
    """A statement, and what is set for it in its transaction."""

    sql: str
    settings: Mapping[str, str] = field(default_factory=dict)


EXACTLY = Way(EXACT)
EXACTLY_WITH_WORDS = Way(EXACT_WITH_WORDS)


def way(
    chunks: int,
    depth: int,
    *,
    top_k: int = 0,
    all_chunks: int = 0,
    exact_up_to: int = EXACT_UP_TO,
    effort: float = 1.0,
    words: bool = False,
) -> Way:
    """How to search a tenant with that many chunks, of `all_chunks` in the database.

    Less effort looks at fewer of them, never fewer than `depth`, which is how many are given. Of those, `top_k` have to
    be the nearest; unsaid, all of them.

    With `words` the statement takes the query and `top_k` as its last arguments, finds up to `depth` by meaning and as
    many by words, and gives the `top_k` best.
    """
    top_k, all_chunks = top_k or depth, max(chunks, all_chunks)
    ef_search = max(depth, math.ceil(EF_SEARCH * effort))
    are_among_the_first = ef_search * chunks >= PLENTY * top_k * all_chunks  # those candidates are met in order
    met = depth if are_among_the_first else max(depth, math.ceil(MET * top_k * effort))
    if chunks <= _border(chunks, all_chunks, met, exact_up_to):
        return EXACTLY_WITH_WORDS if words else EXACTLY
    return Way(
        APPROXIMATE_WITH_WORDS if words else APPROXIMATE,
        {
            **ONLY_THE_GRAPH,
            "weir.rows_met": str(met),
            "hnsw.iterative_scan": "relaxed_order",
            "hnsw.ef_search": str(ef_search),
            "hnsw.max_scan_tuples": str(_max_scan_tuples(chunks, exact_up_to)),
            "hnsw.scan_mem_multiplier": str(SCAN_MEMORY_TIMES),
        },
    )


def _max_scan_tuples(chunks: int, exact_up_to: int) -> int:
    """How many candidates the graph may look at: in about twice the time that an exact search would have taken.

    A question far from all that the tenant has meets everybody else's chunks first, and would hardly come to an end.
    """
    if exact_up_to == 0:
        return MAX_SCAN_TUPLES
    return min(MAX_SCAN_TUPLES, math.ceil(2 * EF_SEARCH * chunks / exact_up_to))


def _border(chunks: int, all_chunks: int, met: int, exact_up_to: int) -> float:
    """Up to what size an exact search is the better one: it grows with the candidates that the graph would look at.

    Those are EF_SEARCH at least, which is what `exact_up_to` stands for, and as many as hold `met` of the tenant's.
    """
    candidates = met * all_chunks / max(1, chunks)
    return exact_up_to * max(1.0, candidates / EF_SEARCH)
