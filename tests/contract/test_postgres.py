"""What a PostgreSQL does for retrieval: whose rows there are, transactions and their ends, locks, time limits, loss."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import numpy as np
import pytest

from loadtests.cluster.embedder import vector_of
from loadtests.cluster.pgstatements import UnknownStatement
from services.retrieval import library, nearest, store, vectors, writing
from services.retrieval.database import NO_TENANT, WRITER, Session, locked, powers
from services.retrieval.nearest import choose_index
from services.retrieval.vectors import Vectors, unembedded
from services.retrieval.writing import Corpus, Quota, QuotaExceeded, Stored, Used
from tests.contract.stages import DatabaseStage, FakeDatabase

LIMIT_S = 30.0
MODEL, OTHER = "a model", "another model"
TENANTS = ("ada", "ben", "o'neil\\'; SET ROLE weir; --", "名前")
Connections = Callable[[], Awaitable[Any]]


def play(stage: DatabaseStage, scenario: Callable[[Any, Connections], Awaitable[None]]) -> None:
    """The scenario over a connection, and more where it wants them."""

    async def main() -> None:
        made = []

        async def another() -> Any:
            made.append(await stage.connect(stage.url, timeout_s=LIMIT_S, application="test"))
            return made[-1]

        try:
            await scenario(await another(), another)
        finally:
            for connection in made:
                connection.terminate()
            await asyncio.sleep(0)

    stage.run(main)


async def put(
    connection: Any, tenant: str, doc_id: str, *texts: str, model: str = MODEL, quota: Quota | None = None
) -> None:
    texts = texts or (f"{tenant} {doc_id} one", f"{tenant} {doc_id} two")
    made = np.stack([vector_of(text) for text in texts])
    await Corpus(connection, tenant).put(
        doc_id, root="r", title=tenant, content_hash="h", texts=texts, vectors=made, model=model, quota=quota
    )


async def titles(session: Session, tenant: str, *, asking_for: str | None = None) -> list[str]:
    asked = tenant if asking_for is None else asking_for
    return [row["title"] for row in await session.fetch(LIMIT_S, library.PAGE, asked, "", 50, tenant=tenant)]


async def used(connection: Any, tenant: str) -> Used:
    async with locked(connection, WRITER, tenant):
        return await Corpus(connection, tenant).used()


async def version(connection: Any, tenant: str) -> int | None:
    async with locked(connection, WRITER, tenant):
        found = await connection.fetchval(library.VERSION, tenant)
    return None if found is None else int(found)


def test_a_session_sees_its_own_tenants_rows_and_nobody_sees_none(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        for tenant in TENANTS:
            await put(connection, tenant, "a.md")
        session = Session(connection, pooled=True)
        for tenant in (*TENANTS, NO_TENANT, "nobody at all", *reversed(TENANTS)):
            assert await titles(session, tenant) == [each for each in TENANTS if each == tenant]
            assert session.unsettled
        await session.settle()
        assert not session.unsettled

    play(database, scenario)


def test_an_argument_that_names_another_tenant_sees_and_changes_nothing(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        for tenant in ("ada", "ben"):
            await put(connection, tenant, "a.md", "A weir holds a river.")
        session = Session(connection)
        vector = vector_of("A weir holds a river.")
        assert await titles(session, "ada", asking_for="ben") == []
        for sql, arguments in {
            nearest.EXACT: [vector, 5, MODEL],
            nearest.EXACT_WITH_WORDS: [vector, 5, MODEL, "weir", 5],
            library.DOCUMENT: ["a.md", MODEL],
            library.VERSION: [],
            writing.USED: [],
            writing.DOCUMENTS: [MODEL],
            vectors.UNEMBEDDED_CHUNKS: [OTHER, "a.md", 5],
        }.items():
            assert await session.fetch(LIMIT_S, sql, "ben", *arguments, tenant="ben")
            assert await session.fetch(LIMIT_S, sql, "ben", *arguments, tenant="ada") == []
        for sql, arguments in {
            writing.REMOVE_CHUNKS: ["a.md"],
            writing.REMOVE_DOCUMENTS: [["a.md"]],
        }.items():
            async with locked(connection, WRITER, "ada"):
                assert (await connection.execute(sql, "ben", *arguments)).split()[-1] == "0"
        assert await Corpus(connection, "ben").documents(MODEL) == {"a.md": Stored("r", "h")}
        for sql, arguments in {
            writing.NEXT_VERSION: [],
            writing.PUT_DOCUMENT: ["b.md", "r", "t", "h", 1],
            writing.ADD_CHUNKS: ["a.md", ["text"]],
        }.items():
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
                async with locked(connection, WRITER, "ada"):
                    await connection.execute(sql, "ben", *arguments)
        assert await used(connection, "ben") == Used(1, len("A weir holds a river."))

    play(database, scenario)


def test_without_a_role_there_are_no_tables_and_a_reader_writes_nothing(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        await put(connection, "ada", "a.md")
        for sql in (library.VERSION, writing.NEXT_VERSION):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(sql, "ada")
        session = Session(connection, pooled=True)
        for _ in range(2):
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await session.fetch(LIMIT_S, writing.REMOVE_CHUNKS, "ada", "a.md", tenant="ada")
            assert session.unsettled
            assert await titles(session, "ada") == ["ada"]
        await session.settle()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with locked(connection, WRITER, "ada"):
                await connection.fetch(store.CORPORA.sql, 5)
        assert await powers(connection) == []

    play(database, scenario)


def test_nothing_is_seen_of_a_transaction_before_it_commits_and_nothing_is_left_of_one_that_fails(
    database: DatabaseStage,
) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        await put(connection, "ada", "a.md", "old")
        other = Session(await another(), pooled=True)
        before = await version(connection, "ada")

        async def half_way() -> None:
            async with locked(connection, WRITER, "ada"):
                await connection.fetchval(writing.NEXT_VERSION, "ada")
                await connection.execute(writing.REMOVE_DOCUMENTS, "ada", ["a.md"])
                assert await connection.fetch(library.PAGE, "ada", "", 5) == []
                assert await titles(other, "ada") == ["ada"]
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await half_way()
        assert await titles(other, "ada") == ["ada"]
        assert await version(connection, "ada") == before
        await Corpus(connection, "ada").remove(["a.md"])
        assert await titles(other, "ada") == []

    play(database, scenario)


def test_a_statement_that_fails_spoils_its_transaction_and_no_other(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        async def on_after_an_error() -> None:
            async with locked(connection, WRITER, "ada"):
                await connection.fetchval(writing.NEXT_VERSION, "ada")
                with pytest.raises(asyncpg.UniqueViolationError):
                    await connection.execute(writing.ADD_CHUNKS, "ada", "a.md", ["again"])
                await connection.fetch(library.PAGE, "ada", "", 5)

        await put(connection, "ada", "a.md", "text")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await on_after_an_error()
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            async with locked(connection, WRITER, "ada"):
                await connection.execute(writing.ADD_CHUNKS, "ada", "no such document", ["text"])
        with pytest.raises(asyncpg.CharacterNotInRepertoireError):
            await put(connection, "ada", "a.md", "a text with \0 in it")
        nonsense = {"statement_timeout": "nonsense"}
        for tenant, settings in (("\x00", {}), ("ada", nonsense), ("ada", {"no_such": "1"})):
            with pytest.raises(asyncpg.PostgresError):
                await Session(connection).fetch(LIMIT_S, library.VERSION, "ada", tenant=tenant, settings=settings)
            assert await titles(Session(connection), "ada") == ["ada"]
        pooled = Session(connection, pooled=True)
        assert await titles(pooled, "ada") == ["ada"]
        with pytest.raises(asyncpg.PostgresError):
            await pooled.fetch(
                LIMIT_S, library.VERSION, "ada", tenant="ada", settings={"statement_timeout": "nonsense"}
            )
        assert await titles(pooled, "ada") == ["ada"]

    play(database, scenario)


def test_writers_of_one_tenant_follow_one_another_and_those_of_others_do_not_wait(database: DatabaseStage) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        await put(connection, "ada", "a.md")
        second, third = await another(), await another()
        async with locked(connection, WRITER, "ada"):
            await connection.fetchval(writing.NEXT_VERSION, "ada")
            waiting = asyncio.create_task(put(second, "ada", "b.md"))
            await put(third, "ben", "b.md")
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            assert not done
        await waiting
        assert set(await Corpus(connection, "ada").documents(MODEL)) == {"a.md", "b.md"}

    play(database, scenario)


def test_a_statement_that_takes_too_long_is_given_up_and_the_session_is_sound(database: DatabaseStage) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        await put(connection, "ada", "a.md")
        impatient = await another()
        await impatient.execute("SET statement_timeout = 50")
        async with locked(connection, WRITER, "ada"):
            await connection.fetchval(writing.NEXT_VERSION, "ada")
            with pytest.raises(asyncpg.QueryCanceledError):
                await put(impatient, "ada", "b.md")
            assert await titles(Session(impatient), "ada") == ["ada"]
        await put(impatient, "ada", "b.md")
        assert await titles(Session(impatient), "ada") == ["ada", "ada"]

    play(database, scenario)


def test_versions_grow_with_every_change_and_one_view_has_all_of_them(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        assert await version(connection, "ada") is None
        seen = [0]
        for step in range(5):
            await put(connection, "ada", f"{step % 2}.md")
            seen.append(await version(connection, "ada") or 0)
        await Corpus(connection, "ada").remove(["0.md", "no such"])
        seen.append(await version(connection, "ada") or 0)
        assert seen == sorted(set(seen))
        await put(connection, "ben", "a.md", "one", "two", "three")
        session = Session(connection)
        rows = await session.fetch(LIMIT_S, store.CORPORA.sql, 100, tenant=NO_TENANT)
        assert {row["tenant"]: row["chunks"] for row in rows} == {"ada": 2, "ben": 3}
        assert set(rows[0].keys()) == {"tenant", "version", "chunks"}
        (last,) = await session.fetch(LIMIT_S, store.CORPORA.sql, 1, tenant=NO_TENANT)
        assert tuple(last) == ("ben", last["version"], 3)

    play(database, scenario)


def test_documents_are_put_replaced_listed_and_removed(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        corpus, session = Corpus(connection, "ada"), Session(connection)
        for doc_id in ("c.md", "a.md", "B.md"):
            await put(connection, "ada", doc_id)
        page = await session.fetch(LIMIT_S, library.PAGE, "ada", "", 2, tenant="ada")
        assert [(row["doc_id"], row["chunks"]) for row in page] == [("B.md", 2), ("a.md", 2)]
        page = await session.fetch(LIMIT_S, library.PAGE, "ada", "a.md", 2, tenant="ada")
        assert [row["doc_id"] for row in page] == ["c.md"]
        await put(connection, "ada", "a.md", "one chunk", model=OTHER)
        assert await corpus.documents(MODEL) == {
            "B.md": Stored("r", "h"), "a.md": Stored("r", "h", 1), "c.md": Stored("r", "h"),
        }  # fmt: skip
        (row,) = await session.fetch(LIMIT_S, library.DOCUMENT, "ada", "a.md", OTHER, tenant="ada")
        assert (row["title"], row["chunks"], row["vectors"]) == ("ada", 1, 1)
        await corpus.remove(["B.md", "c.md"])
        assert await used(connection, "ada") == Used(1, len("one chunk"))

    play(database, scenario)


def test_what_a_model_lacks_is_found_added_and_only_to_the_text_that_was_read(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        await put(connection, "ada", "a.md", "one", "two", "three")
        await put(connection, "ben", "b.md", "four", model=OTHER)
        made = Vectors(connection, "ada", OTHER)
        assert await unembedded(connection, OTHER) == {"ada": 3}
        read = await made.texts("a.md", 2)
        assert read is not None
        assert (read.ordinals, read.texts) == ([0, 1], ["one", "two"])
        two = np.stack([vector_of(text) for text in read.texts])
        assert await made.add("a.md", read, two) == 2
        assert await made.add("a.md", read, two) == 0, "they are there already"
        assert await unembedded(connection, OTHER) == {"ada": 1}
        await put(connection, "ada", "a.md", "other", "texts")
        assert await made.add("a.md", read, two) == 0
        again = await made.texts("a.md", 5)
        assert again is not None
        assert await made.add("a.md", again, two) == 2
        assert await made.texts("a.md", 5) is None

    play(database, scenario)


def test_a_quota_bounds_documents_and_bytes_and_what_would_pass_it_changes_nothing(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        quota = Quota(2, 100)
        await put(connection, "ada", "a", "x" * 30, quota=quota)
        await put(connection, "ada", "b", "x" * 30, "y" * 10, quota=quota)
        with pytest.raises(QuotaExceeded, match=r"2 documents \(documents.count\)"):
            await put(connection, "ada", "c", "x", quota=quota)
        with pytest.raises(QuotaExceeded, match=r"100 bytes of text in all \(documents.bytes\)"):
            await put(connection, "ada", "a", "\N{EURO SIGN}" * 21, quota=quota)
        assert await used(connection, "ada") == Used(2, 70)
        await put(connection, "ben", "a", "x" * 100, quota=quota)  # each has its own
        await put(connection, "ada", "a", "x" * 60, quota=quota)
        await Corpus(connection, "ada").remove(["b"])
        await put(connection, "ada", "c", "x" * 40, quota=quota)
        assert await used(connection, "ada") == Used(2, 100)

    play(database, scenario)


def test_a_tenant_above_a_lower_quota_may_still_have_less(database: DatabaseStage) -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        for doc_id in ("a", "b", "c"):
            await put(connection, "ada", doc_id, "x" * 50)
        await put(connection, "ada", "a", "x" * 40, quota=Quota(1, 10))
        with pytest.raises(QuotaExceeded):
            await put(connection, "ada", "a", "x" * 41, quota=Quota(1, 10))
        assert await used(connection, "ada") == Used(3, 140)

    play(database, scenario)


def test_two_writers_at_once_cannot_both_take_the_last_room(database: DatabaseStage) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        other, quota = await another(), Quota(1, 100)
        writes = (put(connection, "ada", "a", "x", quota=quota), put(other, "ada", "b", "x", quota=quota))
        ended = await asyncio.gather(*writes, return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["NoneType", "QuotaExceeded"]
        assert (await used(connection, "ada")).documents == 1

    play(database, scenario)


def test_a_connection_takes_one_statement_at_a_time_and_none_once_it_is_closed(database: DatabaseStage) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        lost: list[object] = []
        connection.add_termination_listener(lost.append)
        both = [titles(Session(connection), "ada") for _ in range(2)]
        ended = await asyncio.gather(*both, return_exceptions=True)
        assert any(isinstance(each, asyncpg.InterfaceError) for each in ended)
        closed = await another()
        await put(closed, "ada", "a.md")
        async with locked(closed, WRITER, "ada"):
            await closed.fetchval(writing.NEXT_VERSION, "ada")
            waiting = asyncio.create_task(put(connection, "ada", "b.md"))
            await asyncio.sleep(0.05)
            assert not lost
            connection.terminate()
            assert connection.is_closed()
            with pytest.raises((asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, OSError)):
                await waiting
        await asyncio.sleep(0)
        assert lost == [connection]
        with pytest.raises(asyncpg.InterfaceError):
            await connection.fetch(library.VERSION, "ada")
        await put(closed, "ada", "c.md")
        assert set(await Corpus(closed, "ada").documents(MODEL)) == {"a.md", "c.md"}

    play(database, scenario)


def test_the_way_through_the_graph_needs_its_settings(database: DatabaseStage) -> None:
    async def scenario(connection: Any, another: Connections) -> None:
        await put(connection, "ada", "a.md", "A weir holds a river.", "Bread is baked.")
        asked = ("ada", vector_of("a river and its weir"), 1, MODEL)
        chosen = choose_index(10, 1, exact_up_to=0)
        assert chosen.sql == nearest.APPROXIMATE
        (row,) = await Session(connection).fetch(LIMIT_S, chosen.sql, *asked, tenant="ada", settings=chosen.settings)
        assert row["text"] == "A weir holds a river."
        with pytest.raises(asyncpg.UndefinedObjectError):
            await Session(await another()).fetch(LIMIT_S, chosen.sql, *asked, tenant="ada")
        with pytest.raises(asyncpg.DataError):
            await Session(connection).fetch(LIMIT_S, nearest.EXACT, "ada", np.ones(7), 1, MODEL, tenant="ada")

    play(database, scenario)


def test_a_statement_that_the_fake_does_not_know_is_no_error_of_a_database() -> None:
    async def scenario(connection: Any, _: Connections) -> None:
        with pytest.raises(UnknownStatement, match="SELECT 42"):
            await connection.fetch("SELECT 42")
        with pytest.raises(UnknownStatement):
            await Corpus(connection, "ada").move("a.md", "elsewhere")

    play(FakeDatabase(), scenario)
