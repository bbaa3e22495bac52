"""`python -m services.retrieval.migrate`: updates the schema and creates the users of service and metrics exporter.

    POSTGRES_MIGRATE_URL   the owner of the schema, who may create roles; by default the user of POSTGRES_URL
    POSTGRES_URL           the user of the services; created with its password if it is missing
    POSTGRES_MONITOR_URL   the user of a metrics exporter, if set; created in the same way

Each password may stand in a file instead: POSTGRES_MIGRATE_PASSWORD_FILE and so on. docs/architecture/data.md lists
what each user may do. A second run only updates changed passwords.

Exit status: 0 done; 1 failed, with the reason; 2 wrong settings.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg

from services.retrieval.config import MigrateSettings
from services.retrieval.database import MIGRATE_WITHIN_S, READER, WRITER, SchemaTooNew, migrate, powers
from services.retrieval.pool import describe
from services.runtime.settings import NO_LISTENER, load

EXIT_FAILED = 1
SCRAM_ITERATIONS = 4096  # PostgreSQL's own default
LOGIN = "LOGIN NOINHERIT"  # no attributes; a role that has any is rejected below

# Role names and passwords cannot be parameters of these statements, so PostgreSQL quotes them.
CREATE = f"SELECT format('CREATE ROLE %I {LOGIN} PASSWORD %L', $1::text, $2::text)"
ALTER = f"SELECT format('ALTER ROLE %I {LOGIN} PASSWORD %L', $1::text, $2::text)"
GRANT = f"SELECT format('GRANT {READER}, {WRITER} TO %I', $1::text)"
GRANT_FROM_16 = f"SELECT format('GRANT {READER}, {WRITER} TO %I WITH INHERIT FALSE, SET TRUE', $1::text)"
GRANT_STATISTICS = "SELECT format('GRANT pg_monitor TO %I', $1::text)"
MONITOR_LOGIN = "SELECT format('ALTER ROLE %I INHERIT', $1::text)"
GRANT_VERSION = "SELECT format('GRANT SELECT ON weir_schema TO %I', $1::text)"


class MigrationFailed(Exception):
    """The message says why, and what to do."""


async def prepare(owner_url: str, service_url: str, monitor_url: str = "", *, timeout_s: float) -> None:
    """Update the schema as the owner and create the other users. Raises MigrationFailed."""
    try:
        connection = await asyncpg.connect(owner_url, timeout=timeout_s)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise MigrationFailed(f"POSTGRES_MIGRATE_URL: the database cannot be reached: {describe(error)}") from None
    try:
        async with asyncio.timeout(MIGRATE_WITHIN_S):
            await migrate(connection)
            await _create_service_user(connection, owner_url, service_url, timeout_s)
            if monitor_url:
                await _create_monitor_user(connection, monitor_url, timeout_s)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, SchemaTooNew) as error:
        raise MigrationFailed(f"the database cannot be brought up to date: {describe(error)}") from None
    finally:
        connection.terminate()


async def _create_service_user(connection: Any, owner_url: str, service_url: str, timeout_s: float) -> None:
    """Create the service's user, unless it is the owner. Raises MigrationFailed if it may do too much."""
    user = _credentials(service_url)[0]
    if user == _credentials(owner_url)[0]:
        return
    await _ensure_login(connection, service_url, timeout_s)
    modern = await connection.fetchval("SELECT current_setting('server_version_num')::integer >= 160000")
    await _execute(connection, GRANT_FROM_16 if modern else GRANT, user)
    await _execute(connection, GRANT_VERSION, user)
    if found := await powers(connection, user):
        raise MigrationFailed(f"POSTGRES_URL: its user {user} {', '.join(found)}: use a user with fewer privileges")


async def _create_monitor_user(connection: Any, monitor_url: str, timeout_s: float) -> None:
    """Create the user of a metrics exporter, with the rights of `pg_monitor` only."""
    await _ensure_login(connection, monitor_url, timeout_s)
    user = _credentials(monitor_url)[0]
    await _execute(connection, MONITOR_LOGIN, user)
    await _execute(connection, GRANT_STATISTICS, user)


async def _ensure_login(connection: Any, url: str, timeout_s: float) -> None:
    """Create the user, or set its password, unless it can log in."""
    user, password = _credentials(url)
    exists = await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", user)
    if not exists or not await _can_log_in(url, timeout_s):
        await _execute(connection, ALTER if exists else CREATE, user, scram(password))


async def _can_log_in(url: str, timeout_s: float) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=timeout_s)
    except asyncpg.PostgresError:
        return False
    connection.terminate()
    return True


async def _execute(connection: Any, formatted: str, *arguments: str) -> None:
    await connection.execute(await connection.fetchval(formatted, *arguments))


def _credentials(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")


def scram(password: str) -> str:
    """The SCRAM-SHA-256 verifier of a password (RFC 5802), made here so that the server never logs the password.

    Raises MigrationFailed for a password that is empty or not printable ASCII, which RFC 4013 would have to normalise.
    """
    if not password or not (password.isascii() and password.isprintable()):
        raise MigrationFailed("POSTGRES_URL: give its user a password of printable ASCII characters")
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("ascii"), salt, SCRAM_ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_, stored_, server_ = (base64.b64encode(each).decode("ascii") for each in (salt, stored, server))
    return f"SCRAM-SHA-256${SCRAM_ITERATIONS}:{salt_}${stored_}:{server_}"


def main() -> int:
    settings = load(MigrateSettings, **NO_LISTENER)
    try:
        urls = settings.owner_url, settings.database_url, settings.monitor_url
        asyncio.run(prepare(*urls, timeout_s=settings.postgres_connect_timeout_s))
    except MigrationFailed as error:
        sys.stderr.write(f"migrate: {error}\n")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
