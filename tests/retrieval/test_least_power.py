"""The services' user of the database: it can do what the services do, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from services.retrieval.config import MigrateSettings
from services.retrieval.database import NEEDS_MIGRATION, WRITER, Session, connect, locked, powers
from services.retrieval.migrate import MigrationFailed, prepare, scram
from services.retrieval.writing import Corpus
from tests.retrieval.corpus import as_service
from tests.retrieval.test_isolation import put

LIMIT_S = 20.0
REFUSED = (
    "COPY chunks TO PROGRAM 'cat'",
    "COPY (SELECT 1) TO '/tmp/weir_written'",
    "SELECT pg_read_file('/etc/passwd')",
    "CREATE ROLE another",
    "ALTER ROLE weir_service SUPERUSER",
    "GRANT pg_execute_server_program TO weir_service",
    "CREATE DATABASE another",
    "CREATE TABLE public.another (x integer)",
    "DROP EXTENSION vector",
    "DROP TABLE chunks",
    "TRUNCATE chunks",
    "ALTER TABLE chunks DISABLE ROW LEVEL SECURITY",
    "DROP POLICY own_tenant ON chunks",
    "DROP FUNCTION weir_corpora(integer)",
    "UPDATE weir_schema SET version = 0",
    "SET ROLE weir",
    "SET SESSION AUTHORIZATION weir",
    "ALTER SYSTEM SET fsync = off",
)


def run(url: str, scenario: Callable[[Any], Awaitable[None]]) -> None:
    """The scenario over a connection of the services' user, with a document for each of two tenants."""
    service_url = as_service(url)

    async def main() -> None:
        connection = await connect(service_url, timeout_s=LIMIT_S, application="test")
        try:
            for tenant in ("ada", "ben"):
                await put(connection, tenant, "a.md")
            await scenario(connection)
        finally:
            await connection.close()

    asyncio.run(main())


def test_the_services_user_has_no_power_and_owns_nothing(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        assert await connection.fetchval("SELECT session_user") == "weir_service"
        row = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = session_user")
        for power in ("rolsuper", "rolbypassrls", "rolcreaterole", "rolcreatedb", "rolreplication", "rolinherit"):
            assert row[power] is False, power
        for table, owner in (("pg_class", "relowner"), ("pg_proc", "proowner"), ("pg_namespace", "nspowner")):
            owned = f"SELECT count(*) FROM {table} WHERE pg_get_userbyid({owner}) = session_user"
            assert await connection.fetchval(owned) == 0
        may_become = (
            "SELECT array_agg(rolname::text ORDER BY rolname::text) FROM pg_roles WHERE pg_has_role(oid, 'MEMBER')"
        )
        assert await connection.fetchval(may_become) == ["weir_reader", "weir_service", "weir_writer"]
        assert await powers(connection) == []

    run(postgres_url, scenario)


def test_it_reads_nothing_of_anybodys_before_it_has_become_a_reader(postgres_url: str) -> None:
    """Also not after a role was put off again."""

    async def scenario(connection: Any) -> None:
        assert len(await Session(connection).fetch(LIMIT_S, "SELECT 1 FROM chunks", tenant="ada")) == 2
        await connection.execute("SET ROLE weir_reader; RESET ROLE; SELECT set_config('weir.tenant', 'ada', false)")
        for table in ("corpora", "documents", "chunks", "vectors", "embedded", "words", "word_counts"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT * FROM {table}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM weir_search_words('river', 5)")

    run(postgres_url, scenario)


def test_what_no_service_needs_is_refused(postgres_url: str) -> None:
    """As the user itself, and as the more able of the roles that it may become."""

    async def scenario(connection: Any) -> None:
        for role in ("NONE", WRITER):
            await connection.execute(f"SET ROLE {role}")
            for statement in REFUSED:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)

    run(postgres_url, scenario)


def test_it_does_all_that_the_services_do(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "b.md")
        await Corpus(connection, "ada").remove(["a.md"])
        async with locked(connection, WRITER, "ada"):
            assert await connection.fetchval("SELECT count(*) FROM chunks") == 2
            assert await connection.fetchval("SELECT chunks FROM corpora") == 2
        sql = "SELECT doc_id FROM weir_search_words('b.md', 5)"
        rows = await Session(connection).fetch(LIMIT_S, sql, tenant="ada")
        assert {row["doc_id"] for row in rows} == {"b.md"}

    run(postgres_url, scenario)


def test_a_database_that_has_not_been_migrated_is_left_alone_and_says_what_to_do(postgres_url: str) -> None:
    service_url = as_service(postgres_url)

    async def main() -> None:
        owner = await asyncpg.connect(postgres_url)
        await owner.execute("UPDATE weir_schema SET version = 1")
        try:
            with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
                await connect(service_url, timeout_s=LIMIT_S, application="test")
            assert str(caught.value) == NEEDS_MIGRATION
            assert await owner.fetchval("SELECT version FROM weir_schema") == 1
        finally:
            await owner.close()

    asyncio.run(main())


def test_a_second_migration_changes_a_changed_password_and_nothing_else(postgres_url: str) -> None:
    place = postgres_url.rpartition("@")[2]
    urls = [f"postgresql://weir_changing:{password}@{place}" for password in ("first", "second")]

    async def main() -> None:
        owner = await asyncpg.connect(postgres_url)
        try:
            for url in (urls[0], urls[0], urls[1]):
                await prepare(postgres_url, url, timeout_s=LIMIT_S)
                connection = await connect(url, timeout_s=LIMIT_S, application="test")
                await connection.close()
            with pytest.raises(asyncpg.InvalidPasswordError):
                await connect(urls[0], timeout_s=LIMIT_S, application="test")
        finally:
            await owner.execute("DROP OWNED BY weir_changing; DROP ROLE weir_changing")
            await owner.close()

    asyncio.run(main())


def test_a_user_with_powers_is_refused_by_name(postgres_url: str) -> None:
    place = postgres_url.rpartition("@")[2]

    async def main() -> None:
        owner = await asyncpg.connect(postgres_url)
        await owner.execute("CREATE ROLE weir_strong LOGIN PASSWORD 'x' CREATEROLE BYPASSRLS")
        try:
            with pytest.raises(MigrationFailed, match=r"weir_strong bypasses .*, may create roles"):
                await prepare(postgres_url, f"postgresql://weir_strong:x@{place}", timeout_s=LIMIT_S)
        finally:
            await owner.execute("DROP OWNED BY weir_strong; DROP ROLE weir_strong")
            await owner.close()

    asyncio.run(main())


def test_an_exporters_user_reads_what_others_do_and_no_document(postgres_url: str) -> None:
    place = postgres_url.rpartition("@")[2]
    service_url, monitor_url = as_service(postgres_url), f"postgresql://weir_monitor:a-word@{place}"

    async def main() -> None:
        for _ in range(2):  # a second run changes nothing
            await prepare(postgres_url, service_url, monitor_url, timeout_s=LIMIT_S)
        monitor = await asyncpg.connect(monitor_url)
        try:
            others = "SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>'"
            assert await monitor.fetchval(others) == 0
            assert await monitor.fetchval("SELECT pg_database_size(current_database())") > 0
            for refused in ("SELECT * FROM chunks", "SET ROLE weir_reader", *REFUSED):
                with pytest.raises(asyncpg.PostgresError):
                    await monitor.execute(refused)
        finally:
            await monitor.close()

    asyncio.run(main())


@pytest.mark.parametrize("password", ["", "pässword", "a\nb"])
def test_a_password_that_cannot_be_kept_is_refused(password: str) -> None:
    with pytest.raises(MigrationFailed, match="printable ASCII"):
        scram(password)


@pytest.mark.sockets
def test_an_owner_who_cannot_be_reached_is_named_by_its_setting() -> None:
    with pytest.raises(MigrationFailed, match=r"^POSTGRES_MIGRATE_URL: the database cannot be reached"):
        asyncio.run(prepare("postgresql://weir:secret@127.0.0.1:1/weir", "postgresql://a:b@c/d", timeout_s=5.0))


def test_only_the_migration_reads_the_owners_address() -> None:
    assert "postgres_migrate_url" in MigrateSettings.model_fields
    assert "postgres_migrate_url" not in MigrateSettings.__base__.model_fields  # type: ignore[union-attr]
