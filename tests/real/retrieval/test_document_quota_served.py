"""What a tenant may keep, asked of a whole service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from services.retrieval.database import connect
from services.retrieval.writing import Corpus, Quota, QuotaExceeded, Used
from tests.retrieval.corpus import as_service

LIMIT_S = 20.0
VECTOR = np.full(384, 0.05, np.float32)


def on_two(url: str, scenario: Callable[[Any, Any], Awaitable[None]]) -> None:
    """The scenario over two connections of the services' user."""
    service_url = as_service(url)

    async def main() -> None:
        both = [await connect(service_url, timeout_s=LIMIT_S, application="test") for _ in range(2)]
        try:
            await scenario(*both)
        finally:
            for connection in both:
                await connection.close()

    asyncio.run(main())


async def put(connection: Any, tenant: str, doc_id: str, texts: list[str], quota: Quota | None) -> None:
    await Corpus(connection, tenant).put(
        doc_id, root="r", title="t", content_hash="h", texts=texts, vectors=np.stack([VECTOR] * len(texts)),
        model="m", quota=quota,
    )  # fmt: skip


async def kept(connection: Any, tenant: str) -> Used:
    await connection.execute("SET ROLE weir_writer")
    async with connection.transaction():
        await connection.execute("SELECT set_config('weir.tenant', $1, true)", tenant)
        used = await Corpus(connection, tenant).used()
    await connection.execute("RESET ROLE")
    return used


def test_a_quota_bounds_documents_and_bytes_and_what_would_pass_it_changes_nothing(postgres_url: str) -> None:
    async def scenario(connection: Any, _: Any) -> None:
        quota = Quota(2, 100)
        await put(connection, "ada", "a", ["x" * 30], quota)
        await put(connection, "ada", "b", ["x" * 30, "y" * 10], quota)
        with pytest.raises(QuotaExceeded, match=r"2 documents \(documents.count\)"):
            await put(connection, "ada", "c", ["x"], quota)
        with pytest.raises(QuotaExceeded, match=r"100 bytes of text in all \(documents.bytes\)"):
            await put(connection, "ada", "a", ["\N{EURO SIGN}" * 21], quota)
        assert await kept(connection, "ada") == Used(2, 70)
        await put(connection, "ben", "a", ["x" * 100], quota)  # each has its own
        await put(connection, "ada", "a", ["x" * 60], quota)
        await Corpus(connection, "ada").remove(["b"])
        await put(connection, "ada", "c", ["x" * 40], quota)
        assert await kept(connection, "ada") == Used(2, 100)

    on_two(postgres_url, scenario)
