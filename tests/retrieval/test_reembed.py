"""Another model for a corpus that is searched meanwhile: over a real PostgreSQL, and once with whole services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from services.retrieval.database import connect
from services.retrieval.ingest import command, exit_status
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.preparing import DocumentPreparer
from services.retrieval.progress import Reembedded
from services.retrieval.reembed import ANOTHER_RUNS, CHUNKS_AT_ONCE, forget_others, reembed
from services.retrieval.vectors import Vectors, embedded_by_others, unembedded
from services.retrieval.writing import Corpus
from tests.retrieval.corpus import BREAD, RIVER, Recorder, ingested, outcome, settings_for, write
from tests.retrieval.models import CLS, variant

LIMIT_S = 20.0
OLD, NEW = "the old model", "the new model"
ANY_VECTOR = np.full(DIMENSIONS, 0.05, np.float32)


class FakeModel:
    """Another model, as far as the database can tell; it fails when `fails_after` chunks have been embedded."""

    fingerprint = tokenizer = NEW

    def __init__(self, fails_after: int | None = None) -> None:
        self.embedded: list[str] = []
        self.most_at_once = 0
        self._fails_after = fails_after
        self._texts: list[str] = []

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def tokenize(self, text: str) -> list[int]:
        self._texts.append(text)
        return [1]

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        if self._fails_after is not None and len(self.embedded) >= self._fails_after:
            raise MemoryError("no room")
        self.embedded += self._texts
        self._texts = []
        self.most_at_once = max(self.most_at_once, len(texts))
        return np.ones((len(texts), DIMENSIONS), np.float32)


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


async def revising(
    connection: Any, work: Any, model: FakeModel, *tenants: str, dry_run: bool = False, recorder: Recorder | None = None
) -> Reembedded:
    summary = Reembedded(NEW, dry_run)
    await work(connection, model, list(tenants) or None, summary, recorder or Recorder())
    return summary


async def vectors_of(connection: Any, model: str) -> dict[str, int]:
    rows = await connection.fetch("SELECT tenant, count(*) FROM vectors WHERE model = $1 GROUP BY tenant", model)
    return {row["tenant"]: row["count"] for row in rows}


async def counted(connection: Any) -> list[tuple[Any, ...]]:
    """As the database keeps count, which must be what there is."""
    kept = await connection.fetch("SELECT * FROM weir_embedded() ORDER BY 1, 2")
    there = await connection.fetch("SELECT tenant, model, count(*) FROM vectors GROUP BY 1, 2 ORDER BY 1, 2")
    assert [tuple(row) for row in kept] == [tuple(row) for row in there]
    return [tuple(row) for row in kept]


def test_a_plain_ingest_embeds_what_lacks_this_models_vectors_and_cuts_nothing_anew(
    postgres_url: str, model: Path, tmp_path: Path
) -> None:
    another = variant(model, tmp_path / "model", CLS)
    folder = write(tmp_path / "docs", river_md=RIVER, bread_md=BREAD)
    ingested(settings_for(postgres_url), folder)
    changed = settings_for(postgres_url, embed_model_path=str(another))

    async def documents(connection: Any) -> list[Any]:
        rows = await connection.fetch("SELECT *, (SELECT version FROM corpora) FROM documents ORDER BY doc_id")
        return [tuple(row) for row in rows]

    kept: list[Any] = []

    async def before(connection: Any) -> None:
        kept.extend(await documents(connection))

    async def after(connection: Any) -> None:
        now = await documents(connection)
        assert [row[:-1] for row in now] == [row[:-1] for row in kept]
        assert now[0][-1] > kept[0][-1], "what was cached of a search that found too little no longer holds"
        assert [number for _, _, number in await counted(connection)] == [3, 3]

    run(postgres_url, before)
    recorder = Recorder()
    foretold = ingested(changed, folder, dry_run=True, recorder=recorder)
    assert (foretold.completed, foretold.embedded) == (2, 3)
    assert sorted(recorder.changes) == [("embed", "bread.md", 1), ("embed", "river.md", 2)]
    summary = ingested(changed, folder)
    assert (outcome(summary), summary.completed, summary.embedded) == ((0, 0, 0, 0), 2, 3)
    run(postgres_url, after)
    for settings in (changed, settings_for(postgres_url)):
        again = ingested(settings, folder)
        assert (outcome(again), again.embedded) == ((0, 0, 2, 0), 0)


def test_it_goes_on_where_it_was_and_never_holds_more_than_a_page(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "big.md", 2 * CHUNKS_AT_ONCE + 5)
        await put(connection, "ada", "small.md", 3)
        stopped = FakeModel(fails_after=CHUNKS_AT_ONCE)
        with pytest.raises(MemoryError):
            await revising(connection, reembed, stopped)
        assert await vectors_of(connection, NEW) == {"ada": CHUNKS_AT_ONCE}
        model, recorder = FakeModel(), Recorder()
        summary = await revising(connection, reembed, model, recorder=recorder)
        assert set(stopped.embedded).isdisjoint(model.embedded)
        assert (summary.embedded, summary.documents) == (len(model.embedded), 2)
        assert model.most_at_once == CHUNKS_AT_ONCE
        assert await vectors_of(connection, NEW) == await vectors_of(connection, OLD)
        done = [done for _, done, _ in recorder.steps]
        assert done == sorted(done)
        assert {(name, total) for name, _, total in recorder.steps} == {("reembed", done[-1])}
        assert (await revising(connection, reembed, FakeModel())).embedded == 0

    run(postgres_url, scenario)


def test_vectors_are_never_those_of_a_text_that_was_replaced_meanwhile(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "a.md", 2)
        vectors = Vectors(connection, "ada", NEW)
        read = await vectors.texts("a.md", 10)
        assert read is not None
        await put(connection, "ada", "a.md", 2, text="other")
        assert await vectors.add("a.md", read, np.ones((2, DIMENSIONS), np.float32)) == 0
        again = await vectors.texts("a.md", 10)
        assert again is not None
        assert again.texts == ["ada a.md other 0", "ada a.md other 1"]
        assert await vectors.add("a.md", again, np.ones((2, DIMENSIONS), np.float32)) == 2
        assert await vectors.texts("a.md", 10) is None

    run(postgres_url, scenario)


def test_a_dry_run_names_tenants_and_numbers_and_writes_nothing(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "a.md", 2)
        await put(connection, "ben", "b.md", 3)
        before, recorder = await counted(connection), Recorder()
        summary = await revising(connection, reembed, FakeModel(), dry_run=True, recorder=recorder)
        assert (recorder.changes, summary.embedded) == ([("embed", "ada", 2), ("embed", "ben", 3)], 5)
        assert await counted(connection) == before
        await revising(connection, reembed, FakeModel(), "ben")
        recorder = Recorder()
        summary = await revising(connection, forget_others, FakeModel(), dry_run=True, recorder=recorder)
        assert recorder.changes == [("forget", "ada", 2), ("forget", "ben", 3)]
        assert await vectors_of(connection, OLD) == {"ada": 2, "ben": 3}

    run(postgres_url, scenario)


def test_only_the_tenant_that_was_named_is_embedded_and_forgotten_for(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        for tenant in ("ada", "ben", "o'neil"):
            await put(connection, tenant, "a.md", 2)
        assert (await revising(connection, reembed, FakeModel(), "o'neil")).left == 0
        assert await vectors_of(connection, NEW) == {"o'neil": 2}
        assert await unembedded(connection, NEW) == {"ada": 2, "ben": 2}
        assert (await revising(connection, forget_others, FakeModel(), "o'neil")).removed == 2
        assert await vectors_of(connection, OLD) == {"ada": 2, "ben": 2}
        assert await embedded_by_others(connection, NEW) == {"ada": 2, "ben": 2}

    run(postgres_url, scenario)


def test_forgetting_leaves_no_chunk_without_a_vector(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "a.md", 2)
        await revising(connection, reembed, FakeModel())
        await put(connection, "ada", "late.md", 3)
        summary = await revising(connection, forget_others, FakeModel())
        assert (summary.removed, summary.left, exit_status(summary)) == (2, 3, 3)
        assert await vectors_of(connection, OLD) == {"ada": 3}
        assert await counted(connection) == [("ada", NEW, 2), ("ada", OLD, 3)]

    run(postgres_url, scenario)


def test_a_tenant_whose_ingest_runs_is_left_to_the_next_run_and_the_others_are_done(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        for tenant in ("ada", "ben"):
            await put(connection, tenant, "a.md", 2)
        holder = await connect(postgres_url, timeout_s=LIMIT_S, application="test")
        assert await Corpus(holder, "ada").lock()
        summary = await revising(connection, reembed, FakeModel())
        assert [(fault.path, fault.reason) for fault in summary.skipped] == [("ada", ANOTHER_RUNS)]
        assert (summary.embedded, summary.left, exit_status(summary)) == (2, 2, 3)
        assert await Corpus(holder, "ben").lock(), "a tenant that is done is free for others"
        await holder.close()

    run(postgres_url, scenario)


def test_the_counts_of_vectors_are_true_whatever_comes_and_goes(postgres_url: str) -> None:
    async def scenario(connection: Any) -> None:
        await put(connection, "ada", "a.md", 3)
        await put(connection, "ada", "b.md", 2)
        await put(connection, "ben", "a.md", 1, model=NEW)
        assert await counted(connection) == [("ada", OLD, 5), ("ben", NEW, 1)]
        await revising(connection, reembed, FakeModel())
        await put(connection, "ada", "a.md", 4)
        assert await counted(connection) == [("ada", NEW, 2), ("ada", OLD, 6), ("ben", NEW, 1)]
        await Corpus(connection, "ada").remove(["a.md"])
        assert await counted(connection) == [("ada", NEW, 2), ("ada", OLD, 2), ("ben", NEW, 1)]
        await Corpus(connection, "ada").remove(["b.md"])
        assert await counted(connection) == [("ben", NEW, 1)]
        await Corpus(connection, "ben").remove(["a.md"])
        assert await counted(connection) == []

    run(postgres_url, scenario)


def test_a_document_is_known_by_its_tokenizer_and_not_by_its_model() -> None:
    def known_by(tokenizer: str) -> str:
        return DocumentPreparer(len, tokenizer, 200, 30).content_hash("a.md", b"text")

    assert known_by("one") == known_by("one") != known_by("another")


@pytest.mark.parametrize(
    "words", [[], ["--reembed", "docs"], ["--forget-others", "docs"], ["--reembed", "--forget-others"]]
)
def test_paths_and_the_two_that_take_none_exclude_one_another(words: list[str]) -> None:
    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, words).exit_code == 2
