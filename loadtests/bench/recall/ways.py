"""The ways of searching that are compared, by name."""

from __future__ import annotations

from loadtests.bench.recall.subject import COMPARISON, PRODUCT, TABLES
from services.retrieval.nearest import APPROXIMATE, EF_SEARCH, EXACT, EXACTLY, Way, way

EXACT_NAME, UNASKED, FIRST = "exact", "graph, unasked", "graph, first rows met"
EFFORTS = (40, EF_SEARCH, 200)


def ways(top_k: int, storage: str) -> dict[str, Way]:
    """All of them; FIRST is the graph without more rows met than asked for."""
    graphs = {graph_name(ef): graph_way(top_k, ef, storage) for ef in EFFORTS}
    unasked = {"hnsw.iterative_scan": "off", "hnsw.ef_search": "40", "weir.rows_met": str(top_k)}
    return {
        EXACT_NAME: Way(_among(EXACT, storage)),
        UNASKED: graph_way(top_k, 40, storage, **unasked),
        FIRST: graph_way(top_k, EF_SEARCH, storage, **{"weir.rows_met": str(top_k)}),
        **graphs,
    }


def few_ways(top_k: int, storage: str) -> dict[str, Way]:
    """Those of retrieval: what the two ways of storing are compared by."""
    return {name: each for name, each in ways(top_k, storage).items() if name in (EXACT_NAME, graph_name(EF_SEARCH))}


def graph_name(ef_search: int) -> str:
    return f"graph, ef {ef_search}"


def graph_way(top_k: int, ef_search: int, storage: str, **settings: str) -> Way:
    """As retrieval searches a big tenant, with other numbers."""
    usual = way(1, top_k, all_chunks=EF_SEARCH, exact_up_to=0).settings
    return Way(_among(APPROXIMATE, storage), {**usual, "hnsw.ef_search": str(ef_search), **settings})


def chosen(chunks: int, all_chunks: int, top_k: int) -> str:
    """The one that retrieval chooses."""
    return EXACT_NAME if way(chunks, top_k, all_chunks=all_chunks) is EXACTLY else graph_name(EF_SEARCH)


def _among(sql: str, storage: str) -> str:
    return sql if storage == PRODUCT else sql.replace(f"FROM {TABLES[PRODUCT]}", f"FROM {TABLES[COMPARISON]}")
