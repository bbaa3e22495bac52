"""What the doctor says of a corpus: over a real PostgreSQL, as a user who is held by row-level security."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import numpy as np
import pytest

from services.cli import checks
from services.cli.checks import Finding, FindingLevel
from services.cli.databasecheck import database
from services.retrieval.database import connect
from services.retrieval.writing import Corpus

pytestmark = pytest.mark.sockets
VECTOR = np.full(384, 0.05, np.float32)


async def put(connection: Any, tenant: str, chunks: int, model: str) -> None:
    texts = [f"text {number}" for number in range(chunks)]
    vectors = np.stack([VECTOR] * chunks)
    await Corpus(connection, tenant).put(
        "a.md", root="r", title="t", content_hash="h", texts=texts, vectors=vectors, model=model
    )


def test_a_corpus_that_the_model_has_embedded_is_well_and_an_empty_or_older_one_is_not(empty_url: str) -> None:
    async def main() -> list[Finding]:
        bare = (await database(empty_url))[-1]
        root = await connect(empty_url, timeout_s=20, application="test")
        try:
            empty = (await database(empty_url, "new"))[-1]
            await put(root, "ada", 2, "new")
            whole = (await database(empty_url, "new"))[-1]
            await root.execute("DROP FUNCTION weir_embedded()")
            return [bare, empty, whole, (await database(empty_url, "new"))[-1]]
        finally:
            await root.close()

    bare, empty, whole, older = asyncio.run(main())
    assert (bare.level, bare.seen) == (FindingLevel.WARN, "no tables yet")
    assert (empty.level, empty.seen) == (FindingLevel.WARN, "no passages")
    assert (whole.level, whole.seen) == (FindingLevel.OK, "2 passages of 1 tenants; vectors by model: new 2")
    assert (older.level, older.seen) == (FindingLevel.WARN, "tables of an older version")


@pytest.mark.parametrize(
    ("reply", "model"),
    [
        (httpx2.Response(200, json={"ready": True, "model": "abc"}), "abc"),
        (httpx2.Response(503, json={"degraded": ["embedder"]}), ""),
        (httpx2.Response(200, text="<html>"), ""),
        (httpx2.Response(200, json=["no", "object"]), ""),
    ],
)
def test_retrieval_is_asked_which_model_it_runs_with(reply: httpx2.Response, model: str) -> None:
    async def ask() -> str:
        transport = httpx2.MockTransport(lambda _: reply)
        async with httpx2.AsyncClient(transport=transport) as client:
            return await checks.embedder(client, "http://r")

    assert asyncio.run(ask()) == model


def test_a_user_who_may_not_ask_is_told_what_the_database_said(postgres_url: str) -> None:
    async def main() -> Finding:
        root = await connect(postgres_url, timeout_s=20, application="test")
        stranger = f"stranger_{await root.fetchval('SELECT current_database()')}"
        await root.execute(f"CREATE ROLE {stranger} LOGIN PASSWORD 'x'")
        try:
            return (await database(f"postgresql://{stranger}:x@{postgres_url.rsplit('@', 1)[1]}"))[-1]
        finally:
            await root.execute(f"DROP ROLE {stranger}")
            await root.close()

    finding = asyncio.run(main())
    assert finding.level is FindingLevel.FAIL
    assert "permission denied" in finding.seen
