"""What the doctor says of a corpus that was embedded by the model itself, in its own process."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from services.cli.checks import Finding, FindingLevel
from services.cli.databasecheck import database
from services.retrieval.database import READER, connect
from services.retrieval.writing import Corpus

VECTOR = np.full(384, 0.05, np.float32)


async def put(connection: Any, tenant: str, chunks: int, model: str) -> None:
    texts = [f"text {number}" for number in range(chunks)]
    vectors = np.stack([VECTOR] * chunks)
    await Corpus(connection, tenant).put(
        "a.md", root="r", title="t", content_hash="h", texts=texts, vectors=vectors, model=model
    )


def corpus_of(url: str, *models: str) -> list[Finding]:
    """The finding for each of these embedders, of five passages: two by `old`, three by `new`."""

    async def main() -> list[Finding]:
        root = await connect(url, timeout_s=20, application="test")
        held = f"held_{await root.fetchval('SELECT current_database()')}"
        await put(root, "ada", 2, "old")
        await put(root, "ben", 3, "new")
        await root.execute(f"CREATE ROLE {held} LOGIN PASSWORD 'x' IN ROLE {READER}")
        try:
            asked = f"postgresql://{held}:x@{url.rsplit('@', 1)[1]}"
            return [(await database(asked, model))[-1] for model in models]
        finally:
            await root.execute(f"DROP ROLE {held}")
            await root.close()

    return asyncio.run(main())


def test_every_tenants_passages_are_counted_and_what_the_model_lacks_is_a_warning(postgres_url: str) -> None:
    new, unknown = corpus_of(postgres_url, "new", "")
    seen = "5 passages of 2 tenants; vectors by model: new 3, old 2"
    assert (new.level, new.seen) == (FindingLevel.WARN, f"{seen}; 2 not embedded by retrieval's model, new")
    assert new.remedy == "`weir ingest --reembed`"
    assert (unknown.level, unknown.seen) == (FindingLevel.WARN, f"{seen}; 2 not embedded by any one model")
