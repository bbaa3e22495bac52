"""Connections to PostgreSQL, the schema, and the transactions that queries run in.

docs/architecture/data.md describes schema and roles. Normally `services.retrieval.migrate` updates the schema as its
owner, and the services' user owns nothing; a service that logs in as the owner updates it itself.

Every query runs in a transaction that first takes a role without rights of its own and names its tenant (locks.sql).
These statements are one message, so a query costs three round trips: opening, query, end. A search waits for two.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import asyncpg
from pgvector.asyncpg import register_vector

from services.retrieval.deadline import DeadlineExceeded, with_deadline

SCHEMA_VERSION = 6
SCHEMA_FILES = ("schema.sql", "locks.sql", "embedded.sql", "words.sql")
SCHEMA_LOCK = 0x57454952  # "WEIR": any number, the same in all programs
MIGRATE_WITHIN_S = 900.0
SETTINGS = {"jit": "off"}  # compiling takes longer than these queries
READER = "weir_reader"
WRITER = "weir_writer"
NO_TENANT = ""  # for queries about no tenant: they see no tenant's rows

NEEDS_ROLES = (
    "this user may not create the roles weir_reader and weir_writer: let an administrator create them, both NOLOGIN, "
    "and grant them to it"
)

NEEDS_MIGRATION = (
    "the schema has another version, and this user may not change it: run `python -m services.retrieval.migrate` "
    "with POSTGRES_MIGRATE_URL, the URL of its owner"
)

# Attributes that the user of a service must not have, in words.
POWERS = {
    "rolsuper": "is a superuser",
    "rolbypassrls": "bypasses row-level security",
    "rolcreaterole": "may create roles",
    "rolcreatedb": "may create databases",
    "rolreplication": "may replicate the whole server",
}
OWNS = "SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) = $1"
MAY_MIGRATE = """
SELECT rolsuper
    OR coalesce(pg_has_role(rolname, (SELECT relowner FROM pg_class WHERE oid = to_regclass('weir_schema')), 'USAGE'),
                has_schema_privilege(rolname, current_schema(), 'CREATE'))
FROM pg_roles WHERE rolname = current_user
"""


class SchemaTooNew(Exception):
    """The database belongs to a later version of Weir."""


class Session:
    """One connection, for one read query after another.

    A pooled session returns its rows, or its error, before its transaction has ended: the caller waits for two round
    trips, not three. Until then it is `unsettled`. The next query's opening message ends the transaction; if none
    waits, the pool settles the session. Without a pool, `fetch` settles it.
    """

    __slots__ = ("_pooled", "connection")

    def __init__(self, connection: Any, *, pooled: bool = False) -> None:
        self.connection = connection
        self._pooled = pooled

    async def fetch(
        self, limit_s: float, sql: str, *arguments: object, tenant: str, settings: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Run one query among this tenant's rows; the server cancels it after `limit_s` seconds.

        A cancelled fetch leaves the connection as it is: the caller must terminate it.
        """
        try:
            rows = await self._fetch(limit_s, sql, *arguments, tenant=tenant, settings=settings or {})
        except Exception:
            if not self._pooled:
                await self.settle()
            raise
        if not self._pooled:
            await self.settle()
        return rows

    async def _fetch(
        self, limit_s: float, sql: str, *arguments: object, tenant: str, settings: Mapping[str, str]
    ) -> list[Any]:
        clock = asyncio.get_running_loop().time
        due = clock() + limit_s
        timeout = {"statement_timeout": str(max(1, math.ceil(limit_s * 1000)))}
        before = "COMMIT; " if self.unsettled else ""
        await self.connection.execute(before + _opening(READER, tenant, {**timeout, **settings}))
        if clock() >= due:
            raise asyncpg.QueryCanceledError("no time was left after the transaction was opened")
        rows: list[Any] = await self.connection.fetch(sql, *arguments)
        return rows

    @property
    def unsettled(self) -> bool:
        """Its transaction has not ended: it holds locks, and a failed one accepts no statements."""
        return not self.connection.is_closed() and bool(self.connection.is_in_transaction())

    async def settle(self) -> None:
        """End the transaction, if there is one; COMMIT rolls back a failed one."""
        if self.unsettled:
            await self.connection.execute("COMMIT")

    def is_closed(self) -> bool:
        return bool(self.connection.is_closed())

    def terminate(self) -> None:
        self.connection.terminate()

    def on_lost(self, callback: Callable[[], None]) -> None:
        self.connection.add_termination_listener(lambda _: callback())


@asynccontextmanager
async def locked(
    connection: Any, role: str, tenant: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """A transaction as this role, which sees only this tenant's rows; it ends with the block.

    A cancelled block leaves the transaction open: the caller must terminate the connection.
    """
    try:
        await connection.execute(_opening(role, tenant, settings or {}))
        yield
    except Exception:  # also of the opening, whose BEGIN may have run
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    await connection.execute("COMMIT")


def _opening(role: str, tenant: str, settings: Mapping[str, str]) -> str:
    """One message of several statements, which cannot have parameters: the tenant, untrusted input, goes in as hex.

    All settings are local to the transaction. The role comes last, after the settings.
    """
    named = f"SELECT set_config('weir.tenant', convert_from(decode('{tenant.encode().hex()}', 'hex'), 'UTF8'), true)"
    local = [f"SET LOCAL {name} = {value}" for name, value in settings.items()]
    begin = "BEGIN READ ONLY" if role == READER else "BEGIN"
    return "; ".join([begin, *local, named, f"SET LOCAL ROLE {role}"])


async def connect(url: str, *, timeout_s: float, application: str) -> Any:
    """An asyncpg connection to a database whose schema is up to date.

    Raises within `timeout_s`, or within `MIGRATE_WITHIN_S` if the schema must be brought up to date: TimeoutError,
    SchemaTooNew, or the driver's error.
    """

    async def attempt(*, may_migrate: bool) -> Any:
        settings = {**SETTINGS, "application_name": application}
        connection = await asyncpg.connect(url, timeout=timeout_s, server_settings=settings)
        try:
            if may_migrate:
                await migrate(connection)
            elif not await _is_current(connection):
                connection.terminate()
                return None
            await register_vector(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    now = asyncio.get_running_loop().time
    try:
        connection = await with_deadline(now() + timeout_s, attempt(may_migrate=False))
        return connection or await with_deadline(now() + MIGRATE_WITHIN_S, attempt(may_migrate=True))
    except DeadlineExceeded:
        raise TimeoutError(f"no connection within {timeout_s:g} s") from None


async def migrate(connection: Any) -> None:
    """Bring the schema up to date; does nothing if it is. A large database may take minutes, once."""
    if await _is_current(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        found = await _schema_version(connection)
        if found > SCHEMA_VERSION:
            raise SchemaTooNew(f"the schema is version {found}, this program knows {SCHEMA_VERSION}: upgrade it")
        if await _is_current(connection):
            return
        if not await connection.fetchval(MAY_MIGRATE):
            raise asyncpg.InsufficientPrivilegeError(NEEDS_MIGRATION)
        await _may_lock(connection)
        for name in SCHEMA_FILES:
            await connection.execute(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


async def powers(connection: Any, user: str | None = None) -> list[str]:
    """What this user, by default the connection's, may do that no service needs; empty for least privilege."""
    user = user or await connection.fetchval("SELECT session_user")
    role = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", user)
    owns = await connection.fetchval(OWNS, user)
    return [sentence for power, sentence in POWERS.items() if role[power]] + (["owns tables"] if owns else [])


async def _is_current(connection: Any) -> bool:
    """Whether schema and roles are there. Roles are not part of a database, so a restored one may lack them."""
    return await _schema_version(connection) == SCHEMA_VERSION and await _roles(connection) == 2


async def _schema_version(connection: Any) -> int:
    """0 if there is no schema."""
    if await connection.fetchval("SELECT to_regclass('weir_schema')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(version), 0) FROM weir_schema"))


async def _roles(connection: Any) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = ANY($1)", [READER, WRITER]))


async def _may_lock(connection: Any) -> None:
    """Raise if the roles are missing and cannot be created, before PostgreSQL fails halfway."""
    is_one = "SELECT count(*) FROM pg_roles WHERE rolname = ANY($1) AND pg_has_role(current_user, oid, 'MEMBER')"
    may_make = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
    if await connection.fetchval(is_one, [READER, WRITER]) < 2 and not await connection.fetchval(may_make):
        raise asyncpg.InsufficientPrivilegeError(NEEDS_ROLES)
