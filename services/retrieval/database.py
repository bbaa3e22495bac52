"""Connections to PostgreSQL: the schema they find, the vectors they speak, the time a query may take.

The schema is brought up to date by whoever connects first, under an advisory lock, in one transaction: two services and
an ingest that start together do it once. A database that is newer than this program is left alone, with a clear word.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from importlib import resources
from typing import Any

import asyncpg
from pgvector.asyncpg import register_vector

from services.retrieval.deadline import Late, by

SCHEMA_VERSION = 1
SCHEMA_LOCK = 0x57454952  # "WEIR": any number, as long as everyone takes the same
TIMEOUT_STEP_MS = 25  # coarse, so that one setting serves many queries and rarely costs a round trip of its own
SETTINGS = {"jit": "off"}  # compiling costs more than these queries do


class SchemaTooNew(Exception):
    """The database belongs to a later Weir."""


class Session:
    """One connection, remembering the limit it has set."""

    __slots__ = ("_limit_ms", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._limit_ms = 0

    async def fetch(self, limit_s: float, sql: str, *arguments: object) -> list[Any]:
        """Run one query; the server gives up on it after `limit_s`, rounded up to `TIMEOUT_STEP_MS`."""
        limit_ms = max(1, math.ceil(limit_s * 1000 / TIMEOUT_STEP_MS)) * TIMEOUT_STEP_MS
        if limit_ms != self._limit_ms:
            await self.connection.execute(f"SET statement_timeout = {limit_ms:d}")
            self._limit_ms = limit_ms
        rows: list[Any] = await self.connection.fetch(sql, *arguments)
        return rows

    def is_closed(self) -> bool:
        return bool(self.connection.is_closed())

    def terminate(self) -> None:
        self.connection.terminate()

    def on_lost(self, callback: Callable[[], None]) -> None:
        self.connection.add_termination_listener(lambda _: callback())


async def connect(url: str, *, timeout_s: float, application: str) -> Any:
    """An asyncpg connection to a database whose schema is up to date. Raises within `timeout_s`."""

    async def attempt() -> Any:
        settings = {**SETTINGS, "application_name": application}
        connection = await asyncpg.connect(url, timeout=timeout_s, server_settings=settings)
        try:
            await migrate(connection)
            await register_vector(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    try:
        return await by(asyncio.get_running_loop().time() + timeout_s, attempt())
    except Late:
        raise TimeoutError(f"no connection within {timeout_s:g} s") from None


async def migrate(connection: Any) -> None:
    """Bring the schema up to date; nothing happens where it is."""
    if await _schema_version(connection) == SCHEMA_VERSION:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        found = await _schema_version(connection)
        if found > SCHEMA_VERSION:
            raise SchemaTooNew(f"the schema is version {found}, this program knows {SCHEMA_VERSION}: upgrade it")
        if found < SCHEMA_VERSION:
            await connection.execute(resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8"))


async def _schema_version(connection: Any) -> int:
    """0 where there is no schema yet."""
    if await connection.fetchval("SELECT to_regclass('weir_schema')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(version), 0) FROM weir_schema"))
