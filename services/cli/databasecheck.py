"""The checks of `weir doctor` that ask PostgreSQL. It alone imports asyncpg, which images without retrieval lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg

from services.cli.checks import WITHIN_S, Finding, FindingLevel

MIN_PGVECTOR = (0, 8)  # the first version with iterative scans


async def database(url: str, model: str = "") -> list[Finding]:
    """`model` is the fingerprint of retrieval's embedder; empty if unknown."""
    try:
        connection = await asyncpg.connect(url, timeout=WITHIN_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, ValueError) as error:
        return [
            Finding(
                "database",
                FindingLevel.FAIL,
                f"{type(error).__name__}: {error}",
                "check POSTGRES_URL and that the server is running",
            )
        ]
    try:
        version = await connection.fetchval("SHOW server_version")
        extension = await connection.fetchrow(
            "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
        )
        tables = {row["tablename"] for row in await connection.fetch(TABLES)}
        if await connection.fetchval(MAY_READ):  # as the services' user, who has no rights without it
            await connection.execute("SET ROLE weir_reader")
        found = [Finding("database", FindingLevel.OK, f"PostgreSQL {version}"), pgvector(extension)]
        return [*found, await corpus(connection, tables, model)]
    except (TimeoutError, asyncpg.PostgresError) as error:
        return [Finding("database", FindingLevel.FAIL, str(error), "see the database's log")]
    finally:
        await connection.close(timeout=WITHIN_S)


MAY_READ = """
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'weir_reader' AND pg_has_role(current_user, oid, 'MEMBER'))
"""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


def pgvector(extension: Mapping[str, str | None] | None) -> Finding:
    if extension is None:
        return Finding(
            "pgvector", FindingLevel.FAIL, "not available in this server", "install pgvector 0.8 or newer there"
        )
    version = extension["installed_version"] or extension["default_version"] or "0"
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_PGVECTOR:
        return Finding("pgvector", FindingLevel.WARN, version, "0.8 or newer scans an index until it has enough rows")
    return Finding(
        "pgvector", FindingLevel.OK, version + ("" if extension["installed_version"] else ", not yet created")
    )


async def corpus(connection: Any, tables: set[str], model: str) -> Finding:
    """By the database's own counters: row security hides other tenants' rows even from the tables' owner."""
    if not {"documents", "chunks"} <= tables:
        return Finding("corpus", FindingLevel.WARN, "no tables yet", "start retrieval once: it creates them")
    if await connection.fetchval("SELECT to_regprocedure('weir_embedded()')") is None:
        return Finding(
            "corpus", FindingLevel.WARN, "tables of an older version", "start retrieval once: it migrates them"
        )
    tenants, chunks = await connection.fetchrow(HELD)
    if not chunks:
        return Finding("corpus", FindingLevel.WARN, "no passages", "`weir ingest PATH`")
    made = {row["model"]: row["chunks"] for row in await connection.fetch(EMBEDDED)}
    counts = ", ".join(f"{name} {number}" for name, number in made.items()) or "none"
    seen = f"{chunks} passages of {tenants} tenants; vectors by model: {counts}"
    lacking = chunks - (made.get(model, 0) if model else max(made.values(), default=0))
    if lacking:
        by_model = f"retrieval's model, {model}" if model else "any one model"
        return Finding(
            "corpus", FindingLevel.WARN, f"{seen}; {lacking} not embedded by {by_model}", "`weir ingest --reembed`"
        )
    return Finding("corpus", FindingLevel.OK, seen)


HELD = """
SELECT count(*) FILTER (WHERE chunks > 0), coalesce(sum(chunks), 0)::bigint FROM weir_corpora(2147483647)
"""
EMBEDDED = "SELECT model, sum(chunks)::bigint AS chunks FROM weir_embedded() GROUP BY model ORDER BY chunks DESC"
