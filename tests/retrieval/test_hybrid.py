"""Words beside vectors: what only words find is found, for its tenant alone, and no query costs more than its bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import numpy as np
import pytest

from services.retrieval.database import READER, WRITER, Session, connect, locked, migrate
from services.retrieval.minilm import Floats
from services.retrieval.nearest import DEPTH, choose_index
from services.retrieval.pool import ConnectionPool
from services.retrieval.store import SearchResult, Store
from services.retrieval.writing import Corpus
from tests.retrieval.fakes import Lines

LIMIT_S = 30.0
MODEL = "a model"
NUMBER = 150
GRAPH, WORDS = "vectors_by_distance", "words_by_key"
EXACTLY, BY_GRAPH = 10_000, 0
MAX_WORDS, MOST_CHUNKS = 16, 101
HIDDEN = 77
COUNTED = "SELECT tenant, key, count(*) AS chunks FROM words, unnest(keys) AS key GROUP BY 1, 2 ORDER BY 1, 2"
ASKED = "What does EXACT_SEARCH_CHUNKS do?"
HOSTILE = [
    "' OR 1=1; DROP TABLE words; --",
    "a & b | !c <-> d:* (e",
    "\\",
    "%_$1 $$ {}",
    "the of and a to",
    "!?",
    "🦆 名前 naïve \u202e",
    "\0 EXACT\0SEARCH",
    " ".join(f"word{number}" for number in range(900)),
    "x" * 8192,
    "a." * 4096,
    "-_/." * 2048,
    "chunk",
    "chunk " * 1365,
]


def texts(tenant: str) -> list[str]:
    made = [f"Chunk {number} of {tenant}." for number in range(NUMBER)]
    made[HIDDEN] = f"Guide > Settings\n\nEXACT_SEARCH_CHUNKS is the border of {tenant}."
    return made


def vectors(seed: int) -> Floats:
    made = np.random.default_rng(seed).standard_normal((NUMBER, 384), dtype=np.float32)
    made[HIDDEN] = -10 * made[0]
    unit: Floats = (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)
    return unit


KEPT = vectors(seed=1)
VECTOR: Floats = KEPT[0]


async def put(connection: Any, tenant: str, written: Sequence[str], doc_id: str = "a.md") -> None:
    await Corpus(connection, tenant).put(
        doc_id, root="r", title="t", content_hash="h", texts=written, vectors=KEPT[: len(written)], model=MODEL
    )


def run(url: str, scenario: Callable[[Any], Awaitable[None]]) -> None:
    """The scenario, with two tenants that have the same words."""

    async def main() -> None:
        connection = await connect(url, timeout_s=LIMIT_S, application="test")
        try:
            for tenant in ("ada", "ben"):
                await put(connection, tenant, texts(tenant))
            await connection.execute("ANALYZE")
            await scenario(connection)
        finally:
            await connection.close()

    asyncio.run(main())


@asynccontextmanager
async def searching(url: str, exact_up_to: int = EXACTLY) -> AsyncIterator[Store]:
    async def session() -> Session:
        return Session(await connect(url, timeout_s=LIMIT_S, application="test"))

    lines = Lines()
    store = Store(
        ConnectionPool(session, size=1, max_waiting=8, log=lines.log, chance=random.Random(1)),
        log=lines.log,
        exact_up_to=exact_up_to,
    )
    await store.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            while store.corpus_version("ada") is None:
                await asyncio.sleep(0.01)
        yield store
    finally:
        await store.stop()
        lines.read()


async def search(store: Store, query: str, *, tenant: str = "ada", top_k: int = 5, effort: float = 1.0) -> SearchResult:
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    return await store.search(tenant, VECTOR, top_k, deadline, model=MODEL, query=query, effort=effort)


def ids(found: SearchResult) -> list[str]:
    return [passage.chunk_id for passage in found.passages]


async def by_words(connection: Any, query: str, tenant: str = "ada") -> list[tuple[int, float]]:
    sql = "SELECT ordinal, score FROM weir_search_words($1, 50)"
    return [tuple(row) for row in await Session(connection).fetch(LIMIT_S, sql, query, tenant=tenant)]


@pytest.mark.parametrize("exact_up_to", [EXACTLY, BY_GRAPH])
def test_a_name_that_the_vectors_miss_is_found_with_its_distance(postgres_url: str, exact_up_to: int) -> None:
    async def scenario(_: Any) -> None:
        async with searching(postgres_url, exact_up_to) as store:
            hidden = f"a.md#{HIDDEN}"
            assert hidden not in ids(await search(store, "", top_k=50))
            for asked in (ASKED, "exact_search_chunks", "the border of search"):
                found = await search(store, asked)
                assert hidden in ids(found)[:2]
                assert len(found.passages) == 5
                for passage in found.passages:
                    ordinal = int(passage.chunk_id.partition("#")[2])
                    assert passage.distance == pytest.approx(1 - float(KEPT[ordinal] @ VECTOR), abs=0.01)

    run(postgres_url, scenario)


def test_less_effort_leaves_the_words_out_and_the_answer_says_so(postgres_url: str) -> None:
    async def scenario(_: Any) -> None:
        async with searching(postgres_url) as store:
            plain, whole = await search(store, ""), await search(store, ASKED)
            less = await search(store, ASKED, effort=0.5)
            assert ids(less) == ids(plain) != ids(whole)
            assert [plain.effort, less.effort, whole.effort] == [1.0, 0.5, 1.0]

    run(postgres_url, scenario)


def test_what_both_find_is_first_and_a_word_that_nobody_has_changes_nothing(postgres_url: str) -> None:
    async def scenario(_: Any) -> None:
        async with searching(postgres_url) as store:
            near = ids(await search(store, ""))
            assert ids(await search(store, "unheard")) == near
            third = near[2].partition("#")[2]
            assert ids(await search(store, f"Where is {third}?"))[0] == near[2]

    run(postgres_url, scenario)


def test_nobody_meets_the_words_of_another_tenant(postgres_url: str) -> None:
    """Not even in what is rare: what ben's chunks are full of counts for ada's as before."""

    async def scenario(connection: Any) -> None:
        before = await by_words(connection, f"{ASKED} ada")
        assert [ordinal for ordinal, _ in before] == [HIDDEN]
        assert await by_words(connection, "ben") == []
        assert await by_words(connection, ASKED, "nobody") == []
        await put(connection, "ben", ["EXACT_SEARCH_CHUNKS ada"] * 120, "b.md")
        assert await by_words(connection, f"{ASKED} ada") == before
        assert await by_words(connection, ASKED, "ben") == []
        async with searching(postgres_url) as store:
            assert {p.doc_id for p in (await search(store, "EXACT_SEARCH_CHUNKS", top_k=50)).passages} == {"a.md"}
        for role in (READER, WRITER):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with locked(connection, role, "ada"):
                    await connection.execute("SELECT FROM words")

    run(postgres_url, scenario)


def test_a_name_is_more_than_the_words_in_it(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", ["An exact search of all chunks."], "0.md")
        (whole, more), (parts, less) = await by_words(connection, "EXACT_SEARCH_CHUNKS")
        assert (whole, parts) == (HIDDEN, 0)
        assert more > less

    run(postgres_url, scenario)


def test_a_word_that_many_chunks_have_is_no_reason_to_find_one(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        assert await by_words(connection, "chunk") == []
        assert len(await by_words(connection, "border chunk")) == 1

    run(postgres_url, scenario)


def test_a_common_word_is_not_looked_up_and_is_found_again_when_it_is_rare(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        many = ["A border."] * 100
        await put(connection, "ada", many, "b.md")
        assert await by_words(connection, "border") == []
        assert await bounded(connection, "border") == 0
        await put(connection, "ada", many[1:], "b.md")
        assert len(await by_words(connection, "border")) == 50
        assert await bounded(connection, "border") == 1
        await Corpus(connection, "ada").remove(["b.md"])
        assert [ordinal for ordinal, _ in await by_words(connection, "border")] == [HIDDEN]

    run(postgres_url, scenario)


def test_the_counts_are_those_of_the_words_after_every_write_and_in_an_older_database(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        async def right() -> None:
            counted = await connection.fetch(COUNTED)
            assert counted == await connection.fetch("SELECT tenant, key, chunks FROM word_counts ORDER BY 1, 2")

        await right()
        await put(connection, "ada", ["One river.", "Another river.", "A weir."], "b.md")
        await right()
        await put(connection, "ada", ["A weir, and nothing else."], "b.md")
        await right()
        await Corpus(connection, "ada").remove(["a.md"])
        await right()
        await connection.execute("DROP TABLE word_counts CASCADE; UPDATE weir_schema SET version = 5")
        await migrate(connection)
        await right()

    run(postgres_url, scenario)


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_fails_or_reads_more_than_its_bound(postgres_url: str, query: str) -> None:
    async def scenario(connection: Any) -> None:
        async with searching(postgres_url) as store:
            assert len((await search(store, query)).passages) == 5
        await bounded(connection, query.replace("\0", " "))

    run(postgres_url, scenario)


async def bounded(connection: Any, query: str) -> int:
    """How many words were looked up: each through the index, and through nothing else."""
    async with locked(connection, READER, "ada"):
        before = await counts(connection)
        await connection.fetch("SELECT FROM weir_search_words($1, 50)", query)
        looked_up, whole_table, own_key, all_counted, counted, chunks = await counts(connection) - before
    assert whole_table == own_key == all_counted == 0
    assert counted <= MAX_WORDS
    assert looked_up <= MAX_WORDS
    assert chunks <= looked_up * MOST_CHUNKS
    return int(looked_up)


async def counts(connection: Any) -> Any:
    """Scans of the index of words, of their table, of its primary key, of the counts and of their key; rows that were
    fetched from the table of words.
    """
    scans = [
        await connection.fetchval("SELECT pg_stat_get_xact_numscans($1::text::regclass)", name)
        for name in (WORDS, "words", "words_pkey", "word_counts", "word_counts_pkey")
    ]
    return np.array([*scans, await connection.fetchval("SELECT pg_stat_get_xact_tuples_fetched('words'::regclass)")])


def test_the_index_serves_an_owner_who_is_held_by_the_locks_as_well(postgres_url: str) -> None:
    """A database that belongs to nobody special, as a hosted one does."""

    async def scenario(connection: Any) -> None:
        await connection.execute("CREATE ROLE plain LOGIN PASSWORD 'plain'; GRANT weir_reader, weir_writer TO plain")
        await connection.execute("CREATE DATABASE plain OWNER plain")
        ours = postgres_url.rpartition("/")[0] + "/plain"
        owners = f"postgresql://plain:plain@{ours.rpartition('@')[2]}"
        try:
            administrator = await asyncpg.connect(ours)
            await administrator.execute("CREATE EXTENSION vector")
            await administrator.close()
            owned = await connect(owners, timeout_s=LIMIT_S, application="test")
            assert not await owned.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
            await put(owned, "ada", texts("ada"))
            await owned.execute("ANALYZE words")
            assert [ordinal for ordinal, _ in await by_words(owned, ASKED)] == [HIDDEN]
            assert await bounded(owned, ASKED) > 0
            await owned.close()
        finally:
            await connection.execute("DROP DATABASE plain WITH (FORCE)")
            await connection.execute("DROP ROLE plain")

    run(postgres_url, scenario)


def test_words_go_with_their_document_and_an_older_database_gets_them(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await connection.execute("DROP TABLE words CASCADE; DROP FUNCTION weir_add_words CASCADE")
        await connection.execute("UPDATE weir_schema SET version = 3")
        await migrate(connection)
        assert [ordinal for ordinal, _ in await by_words(connection, ASKED)] == [HIDDEN]
        await put(connection, "ada", ["Nothing of the kind."])
        assert await by_words(connection, ASKED) == []
        assert await connection.fetchval("SELECT count(*) FROM words WHERE tenant = 'ada'") == 1
        await Corpus(connection, "ada").remove(["a.md"])
        assert await connection.fetchval("SELECT count(*) FROM words WHERE tenant = 'ada'") == 0

    run(postgres_url, scenario)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("exact_up_to", [EXACTLY, BY_GRAPH])
def test_each_passage_is_looked_up_by_its_key_and_the_graph_serves_big_tenants(
    postgres_url: str, exact_up_to: int, mode: str
) -> None:
    """A comparison that row-level security does not take for leak-proof would read all of the tenant's chunks."""

    async def scenario(connection: Any) -> None:
        chosen = choose_index(NUMBER, DEPTH, exact_up_to=exact_up_to, words=True)
        settings = {**chosen.settings, "enable_seqscan": "off", "plan_cache_mode": mode}
        asked = ("ada", VECTOR, DEPTH, MODEL, ASKED, 5)
        session = Session(connection)
        rows = await session.fetch(LIMIT_S, "EXPLAIN " + chosen.sql, *asked, tenant="ada", settings=settings)
        plan = "\n".join(row[0] for row in rows)
        assert (GRAPH in plan) == (exact_up_to == BY_GRAPH)
        for table in ("vectors", "chunks"):
            by_key = [line for line in plan.splitlines() if "Index Cond" in line and "ordinal = best.ordinal" in line]
            assert len(by_key) == 2, table
            assert all("doc_id = best.doc_id" in line for line in by_key)

    run(postgres_url, scenario)


def test_keys_that_a_tenant_can_compute_hide_no_word_of_another_tenant(postgres_url: str) -> None:
    """What a tenant knows is the formula, the words and the names of tenants: it does not know the secret."""

    async def scenario(connection: Any) -> None:
        before = await by_words(connection, ASKED)
        await put(connection, "ben", ["nothing of the kind"] * 120, "b.md")
        computed = (
            "SELECT array_agg(hashtextextended(word, hashtextextended('ada', 0))) FROM unnest(weir_words($1)) word"
        )
        keys = await connection.fetchval(computed, ASKED)
        await connection.execute("UPDATE words SET keys = $1 WHERE tenant = 'ben' AND doc_id = 'b.md'", keys)
        await connection.execute("UPDATE words SET keys = keys WHERE tenant = 'ada'")  # behind the others in the table
        assert await by_words(connection, ASKED) == before
        for role in (READER, WRITER):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with locked(connection, role, "ada"):
                    await connection.execute("SELECT word_seed FROM weir_secret")

    run(postgres_url, scenario)


def test_a_database_keeps_its_secret_and_one_without_gets_it_with_new_keys(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        secret, before = "SELECT word_seed FROM weir_secret", await by_words(connection, ASKED)
        first = await connection.fetchval(secret)
        await connection.execute("UPDATE weir_schema SET version = 4")
        await migrate(connection)
        assert await connection.fetchval(secret) == first
        await connection.execute("DELETE FROM weir_secret; UPDATE weir_schema SET version = 4")
        await migrate(connection)
        assert await connection.fetchval(secret) != first
        assert await by_words(connection, ASKED) == before

    run(postgres_url, scenario)
