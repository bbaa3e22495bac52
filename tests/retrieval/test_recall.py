"""Small tenants are searched exactly, big ones through the graph, and both get as many rows as they asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.database import Session, connect
from services.retrieval.minilm import Floats
from services.retrieval.nearest import (
    APPROXIMATE,
    EF_SEARCH,
    EXACT,
    EXACTLY,
    MAX_SCAN_TUPLES,
    OVERFETCH,
    SearchStatement,
    choose_index,
)
from services.retrieval.pool import ConnectionPool
from services.retrieval.store import Store
from services.retrieval.writing import Corpus
from tests.retrieval.fakes import Lines

LIMIT_S = 30.0
BIG, SMALL, EXACT_UP_TO = 1200, 40, 300
PART = 120
GRAPH = "vectors_by_distance"
MODEL = "a model"


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 50), st.floats(0.001, 1.0), st.integers(0, 10**6))
def test_the_way_depends_on_size_and_share_and_never_keeps_fewer_candidates_than_rows(
    chunks: int, others: int, top_k: int, effort: float, exact_up_to: int
) -> None:
    chosen = choose_index(chunks, top_k, all_chunks=chunks + others, exact_up_to=exact_up_to, effort=effort)
    if chunks <= exact_up_to:
        assert chosen is EXACTLY
    if chosen is not EXACTLY:
        assert top_k <= int(chosen.settings["hnsw.ef_search"]) <= max(top_k, EF_SEARCH)
        assert top_k <= int(chosen.settings["weir.rows_met"]) <= max(top_k, OVERFETCH * top_k)
        assert chosen.settings["hnsw.iterative_scan"] == "relaxed_order"
        more = choose_index(chunks + 1, top_k, all_chunks=chunks + others + 1, exact_up_to=exact_up_to, effort=effort)
        assert more is not EXACTLY  # a tenant that grows is not searched exactly again


def test_a_tenant_with_a_small_share_is_searched_exactly_up_to_a_greater_size() -> None:
    """While the graph would have to look at so many of the others' chunks that it takes as long."""
    size = 10 * EXACT_UP_TO
    assert choose_index(size, 10, all_chunks=size, exact_up_to=EXACT_UP_TO) is not EXACTLY
    assert choose_index(size, 10, all_chunks=10 * size, exact_up_to=EXACT_UP_TO) is not EXACTLY
    assert choose_index(size, 10, all_chunks=50 * size, exact_up_to=EXACT_UP_TO) is EXACTLY
    assert choose_index(size, 10, all_chunks=50 * size, exact_up_to=EXACT_UP_TO, effort=0.1) is not EXACTLY
    assert choose_index(size, 10, all_chunks=10**9 * size, exact_up_to=0) is not EXACTLY


def test_less_effort_keeps_fewer_candidates_and_meets_fewer_rows() -> None:
    ways = [choose_index(10, 5, all_chunks=1000, exact_up_to=0, effort=effort) for effort in (1.0, 0.5, 0.01)]
    assert [int(each.settings["hnsw.ef_search"]) for each in ways] == [EF_SEARCH, EF_SEARCH // 2, 5]
    assert [int(each.settings["weir.rows_met"]) for each in ways] == [5 * OVERFETCH, 5 * OVERFETCH // 2, 5]


def test_of_more_rows_than_have_to_be_the_nearest_no_more_are_met_than_those_need() -> None:
    for depth, top_k, met in ((20, 5, 5 * OVERFETCH), (20, 1, 20), (20, 0, 20 * OVERFETCH)):
        chosen = choose_index(10, depth, top_k=top_k, all_chunks=1000, exact_up_to=0)
        assert chosen.settings["weir.rows_met"] == str(met)


def test_where_the_first_candidates_hold_plenty_of_the_tenants_rows_no_more_are_met_than_are_asked_for() -> None:
    """The first candidates come in order: a tenant with most chunks has its nearest among them."""
    for share, met in ((1.0, 10), (0.2, 10), (0.19, 10 * OVERFETCH)):
        chosen = choose_index(round(1000 * share), 10, all_chunks=1000, exact_up_to=0)
        assert chosen.settings["weir.rows_met"] == str(met)


def test_the_graph_gives_up_when_an_exact_search_would_have_been_done_twice() -> None:
    """What it has not found by then is looked for exactly."""
    searched_with = [
        int(choose_index(chunks, 10, exact_up_to=exact_up_to).settings["hnsw.max_scan_tuples"])
        for chunks, exact_up_to in ((30_000, 3_000), (60_000, 3_000), (10**9, 3_000), (30_000, 0))
    ]
    assert searched_with == [20 * EF_SEARCH, 40 * EF_SEARCH, MAX_SCAN_TUPLES, MAX_SCAN_TUPLES]


def vectors(number: int, seed: int, around: float = 0.0) -> Floats:
    made = np.random.default_rng(seed).standard_normal((number, 384), dtype=np.float32) + around
    unit: Floats = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    return unit


async def fill(connection: Any, tenant: str, kept: Floats) -> None:
    texts = [f"{tenant} {number}" for number in range(len(kept))]
    await Corpus(connection, tenant).put(
        "a.md", root="r", title="t", content_hash="h", texts=texts, vectors=kept, model=MODEL
    )


@pytest.fixture(scope="module")
def filled_url(postgres_url_of_file: str) -> str:
    """A big tenant, one with a tenth as much, and a small one that lies elsewhere: a graph meets its chunks last."""

    async def main() -> None:
        async with connected(postgres_url_of_file) as connection:
            await fill(connection, "big", vectors(BIG, seed=1))
            await fill(connection, "part", vectors(PART, seed=3))
            await fill(connection, "small", vectors(SMALL, seed=2, around=0.5))
            await connection.execute("ANALYZE chunks; ANALYZE vectors")

    asyncio.run(main())
    return postgres_url_of_file


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await connect(url, timeout_s=LIMIT_S, application="test")
    try:
        yield connection
    finally:
        await connection.close()


class Overheard(Session):
    """A session whose statements are written down."""

    def __init__(self, connection: Any, said: list[str]) -> None:
        super().__init__(connection)
        self._said = said

    async def fetch(self, limit_s: float, sql: str, *arguments: object, **options: Any) -> list[Any]:
        self._said.append(sql)
        return await super().fetch(limit_s, sql, *arguments, **options)


@asynccontextmanager
async def searching(url: str, *, exact_up_to: int, said: list[str] | None = None) -> AsyncIterator[Store]:
    """A store that has seen how big the tenants are."""

    async def session() -> Session:
        connection = await connect(url, timeout_s=LIMIT_S, application="test")
        return Overheard(connection, [] if said is None else said)

    lines = Lines()
    pool = ConnectionPool(session, size=1, max_waiting=8, log=lines.log, chance=random.Random(1))
    store = Store(pool, log=lines.log, exact_up_to=exact_up_to)
    await store.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            while store.corpus_version("big") is None:
                await asyncio.sleep(0.01)
        yield store
    finally:
        await store.stop()
        lines.read()


async def plan(connection: Any, tenant: str, chosen: SearchStatement, explain: str = "EXPLAIN") -> str:
    sql = f"{explain} {chosen.sql}"
    asked = vectors(1, seed=3)[0]
    lines = await Session(connection).fetch(
        LIMIT_S, sql, tenant, asked, 10, MODEL, tenant=tenant, settings=chosen.settings
    )
    return "\n".join(line[0] for line in lines)


def test_postgresql_uses_the_graph_for_the_big_tenant_and_for_no_other(filled_url: str) -> None:
    """In a plan for these arguments, and in one for any; and whatever the settings of the connection make it think."""

    async def main() -> None:
        async with connected(filled_url) as connection:
            for mode in ("force_custom_plan", "force_generic_plan"):
                await connection.execute(f"SET plan_cache_mode = {mode}")
                graph = choose_index(BIG, 10, exact_up_to=EXACT_UP_TO)
                for tenant in ("big", "small"):
                    assert GRAPH in await plan(connection, tenant, graph)
                    assert GRAPH not in await plan(connection, tenant, choose_index(SMALL, 10, exact_up_to=EXACT_UP_TO))
                    await connection.execute("SET enable_sort = off")
                    assert GRAPH not in await plan(connection, tenant, EXACTLY)
                    await connection.execute("RESET enable_sort")

    asyncio.run(main())


def test_the_store_takes_the_way_that_is_right_for_the_tenants_size(filled_url: str) -> None:
    async def main() -> None:
        said: list[str] = []
        async with searching(filled_url, exact_up_to=EXACT_UP_TO, said=said) as store:
            for tenant in ("big", "small", "unknown"):
                await store.search(
                    tenant, vectors(1, seed=1)[0], 10, asyncio.get_running_loop().time() + LIMIT_S, model=MODEL
                )
        assert [sql for sql in said if sql in (EXACT, APPROXIMATE)] == [APPROXIMATE, EXACT, EXACT]

    asyncio.run(main())


def test_every_tenant_gets_as_many_rows_as_it_asked_for_and_nearly_the_right_ones(filled_url: str) -> None:
    async def main() -> None:
        async with searching(filled_url, exact_up_to=EXACT_UP_TO) as store:
            loop = asyncio.get_running_loop()
            for tenant, kept in (("big", vectors(BIG, seed=1)), ("small", vectors(SMALL, seed=2, around=0.5))):
                hits = 0
                for asked in vectors(20, seed=4):
                    found = await store.search(tenant, asked, 10, loop.time() + LIMIT_S, model=MODEL)
                    assert len(found.passages) == 10
                    assert all(passage.text.startswith(tenant) for passage in found.passages)
                    distances = [passage.distance for passage in found.passages]
                    assert distances == sorted(distances)
                    right = {f"a.md#{number}" for number in np.argsort(-(kept @ asked))[:10]}
                    hits += len(right & {passage.chunk_id for passage in found.passages})
                assert hits >= (190 if tenant == "big" else 200)

    asyncio.run(main())


@pytest.mark.parametrize(("effort", "met"), [(1.0, 10 * OVERFETCH), (0.01, 10)])
def test_the_graph_meets_more_of_the_tenants_rows_than_are_asked_for(filled_url: str, effort: float, met: int) -> None:
    """It meets them out of order: the first ten need not be the nearest ten."""

    async def main() -> None:
        async with connected(filled_url) as connection:
            chosen = choose_index(PART, 10, all_chunks=BIG + PART, exact_up_to=0, effort=effort)
            done = await plan(connection, "part", chosen, explain="EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)")
            first, *_ = done.splitlines()
            scan = next(line for line in done.splitlines() if GRAPH in line)
            assert ("rows=10.00" in first, f"rows={met}.00" in scan) == (True, True)

    asyncio.run(main())


def test_what_the_graph_does_not_find_is_looked_for_exactly(filled_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small tenant is taken for a big one, and the scan may not go far enough to meet its chunks."""
    monkeypatch.setattr("services.retrieval.nearest.MAX_SCAN_TUPLES", 1)
    monkeypatch.setattr("services.retrieval.nearest.EF_SEARCH", 10)

    async def main() -> None:
        async with connected(filled_url) as connection, searching(filled_url, exact_up_to=0) as store:
            asked = vectors(1, seed=1)[0]
            await graph_that_leads_past_the_small_tenant(connection, asked)
            deadline = asyncio.get_running_loop().time() + LIMIT_S
            assert len((await store.search("small", asked, 10, deadline, model=MODEL)).passages) == 10
            assert len((await store.search("small", asked, 50, deadline, model=MODEL)).passages) == SMALL

    asyncio.run(main())


async def graph_that_leads_past_the_small_tenant(connection: Any, asked: Floats) -> None:
    """Build the graph anew until it finds fewer than ten of the small tenant's chunks.

    pgvector draws the levels of a graph from a generator that has no seed. About one graph of thirty is entered at a
    chunk of the small tenant, as that tenant has one chunk of thirty-four.
    """
    chosen = choose_index(SMALL, 10, exact_up_to=0)
    for _ in range(20):
        found = await Session(connection).fetch(
            LIMIT_S, chosen.sql, "small", asked, 10, MODEL, tenant="small", settings=chosen.settings
        )
        if len(found) < 10:
            return
        await connection.execute(f"REINDEX INDEX {GRAPH}")
    raise AssertionError("each of twenty graphs leads to the small tenant")
