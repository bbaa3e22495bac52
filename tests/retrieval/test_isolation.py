"""Two locks: every statement keeps to its tenant, and would still do so if it had forgotten to ask for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import pytest

from services.retrieval import library, nearest, store, vectors, writing
from services.retrieval.database import READER, SCHEMA_VERSION, WRITER, Session, connect, locked, migrate
from services.retrieval.minilm import MiniLM
from services.retrieval.writing import Corpus

TENANTS = ("ada", "ben", "o'neil\\'; SET ROLE weir; --", "名前")
LIMIT_S = 20.0
MODEL = "a model"
VECTOR = np.full(384, 0.05, np.float32)
MODULES = (library, nearest, vectors, writing)
STATEMENTS = [sql for module in MODULES for sql in vars(module).values() if isinstance(sql, str)]
READS = [
    sql for sql in STATEMENTS if sql.lstrip().startswith(("SELECT", "WITH")) and "tenant = $1" in sql and "{" not in sql
]
WRITES = [sql for sql in STATEMENTS if sql.lstrip().startswith(("UPDATE", "DELETE"))]
SETTINGS = {"weir.rows_met": "50"}  # without which the statements for the graph do not run
ARGUMENTS: dict[str, list[object]] = {
    library.DOCUMENT: ["a.md", MODEL],
    vectors.FORGET_OTHERS: [MODEL],
    vectors.UNEMBEDDED_CHUNKS: ["another model", "a.md", 50],
    vectors.UNEMBEDDED_DOCUMENTS: ["another model", "", 50],
    writing.DOCUMENTS: ["another model"],
}
OLD_SCHEMA = """
CREATE EXTENSION vector;
CREATE TABLE weir_schema (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL);
CREATE TABLE corpora (tenant text PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE documents (tenant text NOT NULL REFERENCES corpora, doc_id text NOT NULL, root text NOT NULL,
    title text NOT NULL, content_hash text NOT NULL, version bigint NOT NULL, PRIMARY KEY (tenant, doc_id));
CREATE TABLE chunks (tenant text NOT NULL, doc_id text NOT NULL, ordinal integer NOT NULL, text text NOT NULL,
    embedding vector(384) NOT NULL, PRIMARY KEY (tenant, doc_id, ordinal),
    FOREIGN KEY (tenant, doc_id) REFERENCES documents ON DELETE CASCADE);
INSERT INTO weir_schema (version) VALUES (1);
INSERT INTO corpora VALUES ('old', 5), ('other', 6);
INSERT INTO documents VALUES ('old', 'a.md', 'r', 't', 'h', 5);
INSERT INTO chunks SELECT 'old', 'a.md', n, 'text', array_fill(0.1, ARRAY[384])::vector FROM generate_series(0, 2) n;
"""


def run(url: str, scenario: Callable[[Any], Awaitable[None]], *, fill: bool = True) -> None:
    """The scenario over one connection, with two documents of two chunks for each tenant."""

    async def main() -> None:
        connection = await connect(url, timeout_s=LIMIT_S, application="test")
        try:
            for tenant in TENANTS if fill else ():
                for doc_id in ("a.md", "b.md"):
                    await put(connection, tenant, doc_id)
            await scenario(connection)
        finally:
            await connection.close()

    asyncio.run(main())


async def put(connection: Any, tenant: str, doc_id: str, chunks: int = 2) -> None:
    texts = [f"{tenant} {doc_id} {number}" for number in range(chunks)]
    await Corpus(connection, tenant).put(
        doc_id,
        root="r",
        title=tenant,
        content_hash=tenant,
        texts=texts,
        vectors=np.stack([VECTOR] * chunks),
        model=MODEL,
    )


def forgetful(sql: str) -> str:
    """The statement without its tenant; its parameter stays, so that it can be run with the same arguments."""
    changed, places = re.subn(r"(\w+\.)?tenant = \$1", "$1::text IS NOT NULL", sql)
    assert places, f"names no tenant: {sql}"
    return changed


def arguments(sql: str, tenant: str) -> list[object]:
    """Something of the right type for each parameter."""
    if sql in ARGUMENTS:
        return [tenant, *ARGUMENTS[sql]]
    if "<=>" in sql:
        return [tenant, VECTOR, 50, MODEL, *(["a.md", 50] if "$5" in sql else [])]
    if "LIMIT $3" in sql:
        return [tenant, "a.md", 50]
    other: object = ["a.md", "b.md"] if "ANY($2)" in sql else "a.md"
    return [tenant, other, "elsewhere"][: max(int(number) for number in re.findall(r"\$(\d)", sql))]


def test_every_statement_is_among_those_that_are_tried() -> None:
    assert {nearest.EXACT, nearest.APPROXIMATE} <= set(READS)
    assert {nearest.EXACT_WITH_WORDS, nearest.APPROXIMATE_WITH_WORDS} <= set(READS)
    assert writing.DOCUMENTS in READS
    assert {library.DOCUMENT, library.PAGE, library.VERSION} <= set(READS)
    assert {vectors.UNEMBEDDED_CHUNKS, vectors.UNEMBEDDED_DOCUMENTS} <= set(READS)
    assert set(WRITES) == {
        vectors.FORGET_OTHERS, writing.MOVE_DOCUMENT, writing.REMOVE_CHUNKS, writing.REMOVE_DOCUMENTS,
    }  # fmt: skip
    folder = Path(nearest.__file__).parent
    asking = {file.stem for file in folder.glob("*.py") if "tenant = $1" in file.read_text(encoding="utf-8")}
    assert asking == {module.__name__.rpartition(".")[2] for module in MODULES}


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_statement_that_forgets_its_tenant_still_sees_only_that_tenants_rows(postgres_url: str, tenant: str) -> None:
    async def scenario(connection: Any) -> None:
        session = Session(connection)
        for sql in READS:
            how: dict[str, Any] = {"tenant": tenant, "settings": SETTINGS}
            kept = await session.fetch(LIMIT_S, sql, *arguments(sql, tenant), **how)
            forgot = await session.fetch(LIMIT_S, forgetful(sql), *arguments(sql, tenant), **how)
            assert kept
            assert sorted(map(repr, forgot)) == sorted(map(repr, kept))
        for table in ("corpora", "documents", "chunks", "vectors", "embedded"):
            rows = await session.fetch(LIMIT_S, f"SELECT tenant FROM {table}", tenant=tenant)
            assert {row["tenant"] for row in rows} == {tenant}

    run(postgres_url, scenario)


def test_a_writing_statement_that_forgets_its_tenant_changes_no_other_tenants_rows(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        other = "SELECT tenant, doc_id, ordinal, 'another model', embedding FROM vectors"
        await connection.execute(f"INSERT INTO vectors {other}")
        for sql in WRITES:
            async with locked(connection, WRITER, "ada"):
                await connection.execute(forgetful(sql), *arguments(sql, "ada"))
        rows = await connection.fetch("SELECT tenant, root FROM documents WHERE tenant <> 'ada' OR root <> 'r'")
        assert sorted((row["tenant"], row["root"]) for row in rows) == sorted((t, "r") for t in TENANTS[1:] * 2)
        for table, number in (("chunks", 4), ("vectors", 8)):
            held = await connection.fetchval(f"SELECT count(*) FROM {table} WHERE tenant <> 'ada'")
            assert held == number * len(TENANTS[1:])

    run(postgres_url, scenario)


def test_a_row_cannot_be_written_under_anothers_name(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        for sql in (
            "UPDATE chunks SET tenant = 'ben'",
            "UPDATE embedded SET tenant = 'ben'",
            "INSERT INTO corpora VALUES ('new', 1)",
            "INSERT INTO documents VALUES ('ben', 'x.md', 'r', 't', 'h', 1)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
                async with locked(connection, WRITER, "ada"):
                    await connection.execute(sql)

    run(postgres_url, scenario)


def test_where_no_tenant_is_named_there_are_no_rows_not_even_after_one_was(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        session = Session(connection)
        assert await session.fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="ada")
        for role in (READER, WRITER):
            async with connection.transaction():
                await connection.execute(f"SET LOCAL ROLE {role}")
                for table in ("corpora", "documents", "chunks", "vectors", "embedded"):
                    assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
        with pytest.raises(asyncpg.PostgresError):
            await session.fetch(LIMIT_S, "SELECT 1 / 0 FROM chunks", tenant="ada")
        assert await session.fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="") == []
        assert await connection.fetchval("SELECT current_user = session_user")

    run(postgres_url, scenario)


def test_a_transaction_that_fails_at_its_beginning_leaves_a_sound_connection(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        for tenant, settings in (("\x00", {}), ("ada", {"statement_timeout": "nonsense"})):
            with pytest.raises(asyncpg.PostgresError):
                await Session(connection).fetch(LIMIT_S, "SELECT 1", tenant=tenant, settings=settings)
            assert len(await Session(connection).fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="ada")) == 4

    run(postgres_url, scenario)


def test_the_roles_own_nothing_and_can_do_little(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        for role in (READER, WRITER):
            row = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", role)
            powers = ("rolsuper", "rolbypassrls", "rolcanlogin", "rolcreaterole", "rolcreatedb", "rolreplication")
            assert not any(row[power] for power in powers)
            owned = "SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) = $1"
            assert await connection.fetchval(owned, role) == 0
        session = Session(connection)
        for sql in ("DELETE FROM chunks", "SELECT version FROM weir_schema", "ALTER TABLE chunks DISABLE TRIGGER ALL"):
            with pytest.raises(asyncpg.PostgresError):
                await session.fetch(LIMIT_S, sql, tenant="ada")
        unlocked = "SELECT relname FROM pg_class WHERE relname = ANY($1) AND relrowsecurity AND relforcerowsecurity"
        with_tenant = "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant'"
        tables = {row["table_name"] for row in await connection.fetch(with_tenant)}
        assert {row["relname"] for row in await connection.fetch(unlocked, list(tables))} == tables

    run(postgres_url, scenario)


def test_the_one_view_over_all_tenants_holds_versions_and_sizes_only(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await Corpus(connection, "ben").remove(["a.md"])
        await put(connection, "ada", "a.md", chunks=5)
        rows = await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 100, tenant="")
        assert {row["tenant"]: row["chunks"] for row in rows} == dict.fromkeys(TENANTS, 4) | {"ada": 7, "ben": 2}
        assert set(rows[0].keys()) == {"tenant", "version", "chunks"}
        assert len(await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 1, tenant="")) == 1

    run(postgres_url, scenario)


def test_an_older_database_gets_its_locks_its_counts_and_its_vectors_a_table_once(empty_url: str, model: Path) -> None:
    async def prepare() -> None:
        old = await asyncpg.connect(empty_url)
        await old.execute(OLD_SCHEMA)
        await old.close()
        both = await asyncio.gather(*(connect(empty_url, timeout_s=LIMIT_S, application="test") for _ in range(2)))
        for connection in both:
            await connection.close()

    async def scenario(connection: Any) -> None:
        assert await connection.fetchval("SELECT version FROM weir_schema") == SCHEMA_VERSION
        rows = await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 9, tenant="")
        assert [tuple(row) for row in rows] == [("other", 6, 0), ("old", 5, 3)]
        assert await Session(connection).fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="other") == []
        for made_by, number in ((MiniLM(model).fingerprint, 3), ("another model", 0)):
            asked = ("old", VECTOR, 9, made_by)
            assert len(await Session(connection).fetch(LIMIT_S, nearest.EXACT, *asked, tenant="old")) == number
        await connection.execute("UPDATE weir_schema SET version = 1")
        await migrate(connection)
        assert await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 9, tenant="") == rows

    asyncio.run(prepare())
    run(empty_url, scenario, fill=False)


@contextlib.asynccontextmanager
async def owned_by_another(url: str, rights: str) -> AsyncIterator[tuple[str, Any]]:
    """The database given to a user who is no superuser, as where someone else runs it; and the superuser."""
    root = await asyncpg.connect(url)
    database = await root.fetchval("SELECT current_database()")
    owner = f"owner_{database}"
    await root.execute(f"CREATE EXTENSION vector; CREATE ROLE {owner} LOGIN PASSWORD 'x' {rights}")
    await root.execute(f"ALTER DATABASE {database} OWNER TO {owner}")
    try:
        yield f"postgresql://{owner}:x@{url.rsplit('@', 1)[1]}", root
    finally:
        await root.execute(f"ALTER DATABASE {database} OWNER TO CURRENT_USER")
        await root.execute(f"DROP OWNED BY {owner} CASCADE; DROP OWNED BY {owner} CASCADE")
        await root.execute(f"DROP ROLE {owner}")
        await root.close()


async def away(root: Any) -> None:
    """The server has none of the roles; what has rights by them keeps its rights."""
    for role in (READER, WRITER):
        if await root.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", role):
            await root.execute(f"ALTER ROLE {role} RENAME TO {role}_away")


async def back(root: Any) -> None:
    for role in (READER, WRITER):
        await root.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        if await root.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", f"{role}_away"):
            await root.execute(f"ALTER ROLE {role}_away RENAME TO {role}")


def test_an_owner_who_is_no_superuser_is_held_as_well(empty_url: str) -> None:
    async def main() -> None:
        async with owned_by_another(empty_url, "CREATEROLE") as (url, root):
            await away(root)
            connection = await connect(url, timeout_s=LIMIT_S, application="test")
            try:
                await put(connection, "ada", "a.md")
                await put(connection, "ben", "a.md")
                await Corpus(connection, "ben").remove(["a.md"])
                assert await connection.fetchval("SELECT count(*) FROM chunks") == 0  # FORCE
                assert len(await Session(connection).fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="ada")) == 2
                rows = await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 9, tenant="")
                assert {row["tenant"]: row["chunks"] for row in rows} == {"ada": 2, "ben": 0}
                await connection.execute("UPDATE weir_schema SET version = 1")
                await migrate(connection)
                assert await Session(connection).fetch(LIMIT_S, store.CORPORA.sql, 9, tenant="") == rows
            finally:
                await connection.close()
                await back(root)

    asyncio.run(main())


def test_a_user_who_may_not_make_the_roles_is_told_what_to_ask_for(empty_url: str) -> None:
    async def main() -> None:
        async with owned_by_another(empty_url, "NOCREATEROLE") as (url, root):
            await away(root)
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="let an administrator create them"):
                await connect(url, timeout_s=LIMIT_S, application="test")
            await root.execute(f"CREATE ROLE {READER} NOLOGIN; CREATE ROLE {WRITER} NOLOGIN")
            try:
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="grant them to it"):
                    await connect(url, timeout_s=LIMIT_S, application="test")
                await root.execute(f"GRANT {READER}, {WRITER} TO {url.split('//')[1].split(':')[0]}")
                connection = await connect(url, timeout_s=LIMIT_S, application="test")
                await put(connection, "ada", "a.md")
                await connection.close()
            finally:
                await back(root)

    asyncio.run(main())
