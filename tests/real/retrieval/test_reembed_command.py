"""Another model for a corpus that whole services search meanwhile, by the command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from services.retrieval.config import RetrievalSettings
from services.retrieval.database import connect
from services.retrieval.ingest import revise
from services.retrieval.minilm import DIMENSIONS
from services.retrieval.progress import Reembedded
from services.retrieval.writing import Corpus
from tests.real.retrieval.test_retrieval_service import GENEROUS_MS, Client, serving
from tests.retrieval.corpus import BREAD, RIVER, Recorder, settings_for, take_in, write
from tests.retrieval.models import CLS, variant

LIMIT_S = 20.0
OLD, NEW = "the old model", "the new model"
ANY_VECTOR = np.full(DIMENSIONS, 0.05, np.float32)


def run(url: str, scenario: Callable[[Any], Awaitable[None]]) -> None:
    """Over one connection to an empty database."""

    async def main() -> None:
        connection = await connect(url, timeout_s=LIMIT_S, application="test")
        try:
            await scenario(connection)
        finally:
            await connection.close()

    asyncio.run(main())


async def put(connection: Any, tenant: str, doc_id: str, chunks: int, *, text: str = "text", model: str = OLD) -> None:
    await Corpus(connection, tenant).put(
        doc_id,
        root="r",
        title="t",
        content_hash="h",
        texts=[f"{tenant} {doc_id} {text} {number}" for number in range(chunks)],
        vectors=np.stack([ANY_VECTOR] * chunks),
        model=model,
    )


def test_a_model_is_changed_while_services_answer_and_the_next_run_catches_what_was_put_meanwhile(
    postgres_url: str, redis_url: str, model: Path, tmp_path: Path
) -> None:
    another = variant(model, tmp_path / "model", CLS)
    folder = write(tmp_path / "docs", river_md=RIVER, bread_md=BREAD)

    def settings(path: Path) -> RetrievalSettings:
        return settings_for(
            postgres_url, redis_url, retrieval_budget_ms=GENEROUS_MS, cache_ttl_s=0, embed_model_path=str(path)
        )

    async def found(client: Client, query: str, tenant: str = "demo") -> list[str]:
        return [passage["doc_id"] for passage in (await client.retrieve(query, tenant))["results"]]

    async def put_over_http(client: Client, doc_id: str, text: str) -> str:
        path = f"/documents/{doc_id}"
        answer = await client.http.put(path, json={"text": text}, headers={"x-tenant": "acme"})
        assert answer.status_code in (200, 201), answer.text
        state: str = answer.json()["state"]
        return state

    async def embed_anew(*, forget: bool = False) -> Reembedded:
        return await revise(settings(another), tenant=None, forget=forget, dry_run=False, report=Recorder())

    async def main() -> None:
        await take_in(settings(model), folder)
        async with serving(settings(model), model) as old:
            await old.until_ready()
            await put_over_http(old, "put.txt", "Salmon climb the ladder beside the weir.")
            async with serving(settings(another), another) as early:
                await early.until_ready()
                assert await found(early, "high water") == [], "there are no vectors of its model yet"
            running = asyncio.create_task(embed_anew())
            asked = 0
            while not running.done() or asked < 3:
                assert await found(old, "high water") == ["river.md", "river.md"]
                assert await found(old, "fish", "acme") == ["put.txt"]
                asked += 1
            summary = await running
            assert (summary.tenants, summary.documents, summary.embedded, summary.left) == (2, 3, 4, 0)
            await put_over_http(old, "late.txt", "Beavers build dams of sticks.")
            assert await found(old, "beavers", "acme") == ["late.txt", "put.txt"]

            async with serving(settings(another), another) as new:
                await new.until_ready()
                assert await found(new, "high water") == ["river.md", "river.md"]
                assert await found(new, "beavers", "acme") == ["put.txt"], "late.txt has no vector of this model yet"
                kept = await embed_anew(forget=True)
                assert (kept.removed, kept.left) == (4, 1), "the late document's only vector stays"
                assert await found(old, "beavers", "acme") == ["late.txt"]
                assert (await embed_anew()).embedded == 1
                assert set(await found(new, "beavers", "acme")) == {"late.txt", "put.txt"}
                assert await put_over_http(new, "late.txt", "Beavers build dams of sticks.") == "unchanged"
                await put_over_http(old, "later.txt", "Otters swim.")
                assert await put_over_http(new, "later.txt", "Otters swim.") == "unchanged"
                assert "later.txt" in await found(new, "otters", "acme"), "its text was in, and is embedded now"
                assert await found(old, "otters", "acme") == ["later.txt", "late.txt"], "the old vectors are kept"
                assert (await embed_anew(forget=True)).removed == 2
                assert await found(old, "high water") == []
                assert await found(new, "high water") == ["river.md", "river.md"]

    asyncio.run(main())


def test_the_command_says_what_it_would_do_as_lines_that_a_program_can_follow(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "a.md", 2)

    run(postgres_url, scenario)
    words = ["--reembed", "--dry-run", "--progress", "json", "--tenant", "ada"]
    ran = subprocess.run(
        [sys.executable, "-m", "services.retrieval.ingest", *words],
        env={**os.environ, "POSTGRES_URL": postgres_url}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    change, finished = (json.loads(line) for line in ran.stdout.splitlines())
    assert change == {"change": "embed", "doc_id": "ada", "chunks": 2}
    assert (finished["step"], finished["model"], finished["embedded"]) == ("finished", "all-MiniLM-L6-v2", 2)
