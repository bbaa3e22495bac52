"""Documents are read, and written, while others are embedded, and never many at once.

Nothing here needs a database or a model.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from services.retrieval import preparing
from services.retrieval.documents import Document, parse
from services.retrieval.intake import READ_AHEAD, Ingest
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.progress import IngestSummary
from services.retrieval.writing import Stored
from tests.retrieval.corpus import Recorder, settings_for

DOCUMENTS = 40


class FakeModel:
    """Counts what has been read, by its tokens, and lets a test look when it embeds."""

    fingerprint = tokenizer = "fake"

    def __init__(self, embedding: Callable[[FakeModel], None]) -> None:
        self._embedding = embedding
        self.read = threading.Condition()
        self.documents_read = 0
        self.embedded = 0

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def tokenize(self, text: str) -> list[int]:
        with self.read:
            self.documents_read += 1
            self.read.notify_all()
        return [1]

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        self._embedding(self)
        self.embedded += 1
        return np.ones((len(texts), DIMENSIONS), np.float32)


class FakeCorpus:
    """Remembers which documents came in, in order. A write ends when the model lets it."""

    def __init__(self, writing: Callable[[], Awaitable[None]] | None = None) -> None:
        self.put_in: list[str] = []
        self._writing = writing

    async def documents(self, model: str) -> dict[str, Stored]:
        return {}

    async def put(
        self,
        doc_id: str,
        *,
        root: str,
        title: str,
        content_hash: str,
        texts: Sequence[str],
        vectors: Floats,
        model: str,
    ) -> None:
        if self._writing is not None:
            await self._writing()
        self.put_in.append(doc_id)

    async def move(self, doc_id: str, root: str) -> None: ...

    async def remove(self, doc_ids: Sequence[str]) -> None: ...


class NothingToComplete:
    """Of documents that all have their vectors."""

    async def complete(self, doc_id: str) -> None:
        raise AssertionError(doc_id)

    async def finish(self) -> None: ...


def run(folder: Path, model: FakeModel, corpus: FakeCorpus) -> IngestSummary:
    for number in range(DOCUMENTS):
        (folder / f"{number:02}.txt").write_text(f"words of document {number}")
    summary = IngestSummary("demo")
    settings = settings_for("postgresql://nobody@127.0.0.1:1/none")
    ingest = Ingest(settings, model, corpus, NothingToComplete(), summary, Recorder())
    asyncio.run(ingest.run([folder], prune=True))
    return summary


def test_the_next_documents_are_read_while_one_is_embedded_and_never_more_than_the_bound(tmp_path: Path) -> None:
    corpus, ahead = FakeCorpus(), []

    def embedding(model: FakeModel) -> None:
        wanted = min(model.embedded + 1 + READ_AHEAD, DOCUMENTS)
        with model.read:
            assert model.read.wait_for(lambda: model.documents_read >= wanted, timeout=20), "nobody reads meanwhile"
            ahead.append(model.documents_read - model.embedded)

    summary = run(tmp_path, FakeModel(embedding), corpus)
    assert corpus.put_in == [f"{number:02}.txt" for number in range(DOCUMENTS)]
    assert (summary.added, summary.embedded) == (DOCUMENTS, DOCUMENTS)
    assert max(ahead) == READ_AHEAD + 1


def test_a_document_is_embedded_while_the_one_before_is_written_and_no_other_one(tmp_path: Path) -> None:
    waiting: list[int] = []
    next_begun = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def embedding(model: FakeModel) -> None:
        waiting.append(model.embedded - len(corpus.put_in))
        for loop in loops:
            loop.call_soon_threadsafe(next_begun.set)

    async def writing() -> None:
        """Ends when the next document is being embedded, unless there is none."""
        loops[:] = [asyncio.get_running_loop()]
        if len(corpus.put_in) + 1 < DOCUMENTS:
            async with asyncio.timeout(20):
                while len(waiting) < len(corpus.put_in) + 2:
                    next_begun.clear()
                    await next_begun.wait()

    corpus = FakeCorpus(writing)
    run(tmp_path, FakeModel(embedding), corpus)
    assert len(corpus.put_in) == DOCUMENTS
    assert max(waiting) == 1


def test_a_database_that_fails_ends_the_ingest_at_once(tmp_path: Path) -> None:
    async def writing() -> None:
        raise ConnectionError("gone")

    model, corpus = FakeModel(lambda _: None), FakeCorpus(writing)
    with pytest.raises(ConnectionError, match="gone"):
        run(tmp_path, model, corpus)
    assert corpus.put_in == []
    assert model.embedded <= 2


def test_a_model_that_fails_ends_the_ingest_and_what_is_in_stays_in(tmp_path: Path) -> None:
    corpus = FakeCorpus()

    def embedding(model: FakeModel) -> None:
        if model.embedded == 3:
            raise MemoryError("no room for this one")

    with pytest.raises(MemoryError):
        run(tmp_path, FakeModel(embedding), corpus)
    assert len(corpus.put_in) == 3


def test_no_thread_outlives_an_ingest_that_failed(tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def embedding(model: FakeModel) -> None:
        raise MemoryError("no room for this one")

    class SlowModel(FakeModel):
        def tokenize(self, text: str) -> list[int]:
            if self.documents_read > 0:  # a file is still being read when the run fails
                time.sleep(0.05)
            return super().tokenize(text)

    with pytest.raises(MemoryError):
        run(tmp_path, SlowModel(embedding), FakeCorpus())
    assert set(threading.enumerate()) == before


def test_a_new_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counting(name: str, data: bytes) -> Document:
        parsed.append(name)
        return parse(name, data)

    monkeypatch.setattr(preparing, "parse", counting)
    run(tmp_path, FakeModel(lambda _: None), FakeCorpus())
    assert sorted(parsed) == [f"{number:02}.txt" for number in range(DOCUMENTS)]
