"""One ingest: a tenant's corpus is brought in step with files, over a given model and corpus.

    compare with the database -> read, parse and chunk what is new -> embed -> replace -> remove what has gone
                                 `------ in a thread, a few ahead ------'   `- in another, one ahead

A document is embedded while the one before is written: embedding takes most of the time, and the database has a
processor of its own, or another machine. Each file is parsed once, just before it is embedded. The number of chunks is
unknown before, so progress counts file sizes. At most `READ_AHEAD` documents are held in memory before they are
embedded. A dry run parses everything, to report what there is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from services.retrieval.config import RetrievalSettings
from services.retrieval.deadline import cancel_and_wait
from services.retrieval.documents import UnreadableDocument
from services.retrieval.files import Fault, FoundFiles, Source, find, read
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM
from services.retrieval.preparing import DocumentPreparer, PreparedDocument
from services.retrieval.progress import IngestSummary, Reporter
from services.retrieval.reembed import Completing
from services.retrieval.writing import Corpus, Stored

EMBED_AT_ONCE = 8
READ_AHEAD = 4  # documents that are prepared while one is embedded
YIELD_EVERY = 16
KIB = 1024


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """The work: files to ingest, documents without vectors of the model, files whose folder has moved."""

    changed: list[Source] = field(default_factory=list)
    unembedded: list[tuple[Source, int]] = field(default_factory=list)
    moved: list[Source] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EmbeddedDocument:
    """A document that can be written: its vectors are those of its texts, in order."""

    source: Source
    document: PreparedDocument
    vectors: Floats


Ready = tuple[PreparedDocument, list[list[int]]]
"""A document and the token ids of its chunks."""


class Ingest:
    def __init__(
        self,
        settings: RetrievalSettings,
        model: MiniLM,
        corpus: Corpus,
        completing: Completing,
        summary: IngestSummary,
        report: Reporter,
    ) -> None:
        self._max_file_bytes = settings.ingest_max_file_bytes
        self._model = model
        self._corpus = corpus
        self._completing = completing
        self._summary = summary
        self._report = report
        self._preparer = DocumentPreparer(
            model.count_tokens, model.tokenizer, settings.chunk_tokens, settings.chunk_overlap_tokens
        )
        self._stored: dict[str, Stored] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._embedder = ThreadPoolExecutor(1, thread_name_prefix="embedder")

    async def run(self, paths: Sequence[Path], *, prune: bool) -> None:
        """Carry out the whole run; a dry run writes nothing."""
        found = find(paths)
        self._summary.skipped += found.faults
        self._stored = await self._corpus.documents(self._model.fingerprint)
        plan = await self._plan(found)
        try:
            if self._summary.dry_run:
                await self._report_plan(plan)
            else:
                await self._carry_out(plan)
        finally:
            await self._end_threads()
        if prune and self._summary.usable:  # an empty folder may be one that is not mounted
            await self._prune(found)

    async def _end_threads(self) -> None:
        """Wait for the file that is read, and the batch that is embedded: no thread outlives the run."""
        for pool in (self._reader, self._embedder):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    async def _plan(self, found: FoundFiles) -> IngestPlan:
        """Compare the files with the stored documents. Files that are not stored yet are not read."""
        plan = IngestPlan()
        for number, source in enumerate(found.sources, start=1):
            stored = self._stored.get(source.doc_id)
            if stored is None:
                plan.changed.append(source)
            else:
                self._compare(source, stored, plan)
            if number % YIELD_EVERY == 0 or number == len(found.sources):
                self._report.step("read", number, len(found.sources))
                await asyncio.sleep(0)
        plan.changed.sort(key=_size)  # the smallest first, so that searches soon find something
        return plan

    def _compare(self, source: Source, stored: Stored, plan: IngestPlan) -> None:
        try:
            digest = self._preparer.content_hash(source.path.name, read(source.path, self._max_file_bytes))
        except UnreadableDocument as error:
            self._skip(source, error)
            return
        if stored.content_hash != digest:
            plan.changed.append(source)
            return
        if stored.root != source.root:
            plan.moved.append(source)
        if stored.unembedded:
            plan.unembedded.append((source, stored.unembedded))
        else:
            self._summary.unchanged += 1

    async def _report_plan(self, plan: IngestPlan) -> None:
        """Report what would be done, with the number of chunks."""
        async for source, ready in self._read_ahead(plan.changed):
            if isinstance(ready, UnreadableDocument):
                self._skip(source, ready)
                continue
            chunks = len(ready[0].texts)
            self._report.change(self._count(source), source.doc_id, chunks)
            self._summary.embedded += chunks
        for source, chunks in plan.unembedded:
            self._report.change("embed", source.doc_id, chunks)
            self._summary.completed += 1
            self._summary.embedded += chunks

    async def _carry_out(self, plan: IngestPlan) -> None:
        sizes = SizeProgress([*plan.changed, *(source for source, _ in plan.unembedded)], self._report)
        async with aclosing(self._embed_ahead(plan.changed, sizes)) as embedding:
            async for embedded in embedding:
                await self._store(embedded)
                self._count(embedded.source)
                sizes.part(embedded.source, 1.0)
        for source, _ in plan.unembedded:
            await self._completing.complete(source.doc_id)
            self._summary.completed += 1
            sizes.part(source, 1.0)
        await self._completing.finish()
        for source in plan.moved:
            await self._corpus.move(source.doc_id, source.root)

    async def _prune(self, found: FoundFiles) -> None:
        gone = [
            doc_id for doc_id, document in self._stored.items()
            if document.root in found.whole_roots and doc_id not in found.present
        ]  # fmt: skip
        self._summary.removed = len(gone)
        if self._summary.dry_run:
            for doc_id in gone:
                self._report.change("remove", doc_id, 0)
        elif gone:
            await self._corpus.remove(gone)
            self._report.step("remove", len(gone), len(gone))

    def _count(self, source: Source) -> str:
        """Count the document; return its kind of change as a dry run reports it."""
        if source.doc_id in self._stored:
            self._summary.updated += 1
            return "update"
        self._summary.added += 1
        return "add"

    def _skip(self, source: Source, error: UnreadableDocument) -> None:
        self._summary.skipped.append(Fault(str(source.path), str(error)))

    async def _read_ahead(self, sources: Sequence[Source]) -> AsyncIterator[tuple[Source, Ready | UnreadableDocument]]:
        """Each file and what it becomes, while the next ones are read."""
        loop = asyncio.get_running_loop()
        pending: deque[tuple[Source, asyncio.Future[Ready | UnreadableDocument]]] = deque()
        for source in sources:
            pending.append((source, loop.run_in_executor(self._reader, self._ready, source)))
            if len(pending) > READ_AHEAD:
                first, ready = pending.popleft()
                yield first, await ready
        while pending:
            first, ready = pending.popleft()
            yield first, await ready

    def _ready(self, source: Source) -> Ready | UnreadableDocument:
        """Runs in the reader's thread."""
        try:
            prepared = self._preparer.prepare(source.path.name, read(source.path, self._max_file_bytes))
        except UnreadableDocument as error:
            return error
        return prepared, [self._model.tokenize(text) for text in prepared.texts]

    async def _embed_ahead(
        self, sources: Sequence[Source], sizes: SizeProgress
    ) -> AsyncGenerator[EmbeddedDocument, None]:
        """Each document with its vectors, while the next one is embedded. Files that cannot be read are skipped."""
        reading = self._read_ahead(sources)
        running: asyncio.Task[EmbeddedDocument] | None = None
        try:
            while True:
                before = None if running is None else await running
                running = await self._begin_next(reading, sizes)
                if before is not None:
                    yield before
                if running is None:
                    return
        finally:
            await cancel_and_wait(running)

    async def _begin_next(
        self, reading: AsyncIterator[tuple[Source, Ready | UnreadableDocument]], sizes: SizeProgress
    ) -> asyncio.Task[EmbeddedDocument] | None:
        """Begin to embed the next document that can be read; None if there is none."""
        async for source, ready in reading:
            if not isinstance(ready, UnreadableDocument):
                return asyncio.get_running_loop().create_task(
                    self._embedded(source, *ready, sizes), name="embed-document"
                )
            self._skip(source, ready)
            sizes.part(source, 1.0)
        return None

    async def _embedded(
        self, source: Source, prepared: PreparedDocument, tokens: list[list[int]], sizes: SizeProgress
    ) -> EmbeddedDocument:
        vectors = np.empty((len(tokens), DIMENSIONS), np.float32)
        for first in range(0, len(tokens), EMBED_AT_ONCE):
            batch = tokens[first : first + EMBED_AT_ONCE]
            vectors[first : first + len(batch)] = await self._embed(batch)
            sizes.part(source, (first + len(batch)) / len(tokens))
        return EmbeddedDocument(source, prepared, vectors)

    async def _store(self, embedded: EmbeddedDocument) -> None:
        document = embedded.document
        await self._corpus.put(
            embedded.source.doc_id,
            root=embedded.source.root,
            title=document.title,
            content_hash=document.content_hash,
            texts=document.texts,
            vectors=embedded.vectors,
            model=self._model.fingerprint,
        )
        self._summary.embedded += len(document.texts)

    async def _embed(self, tokens: Sequence[list[int]]) -> Floats:
        return await asyncio.get_running_loop().run_in_executor(self._embedder, self._model.embed, tokens)


class SizeProgress:
    """Progress in KiB of the files to embed."""

    def __init__(self, sources: Sequence[Source], report: Reporter) -> None:
        self._sizes = {source.doc_id: _size(source) for source in sources}
        self._done = dict.fromkeys(self._sizes, 0)
        self._done_in_all = 0
        self._total = sum(self._sizes.values())
        self._report = report

    def part(self, source: Source, share: float) -> None:
        """This share of the file is done, in all; a file that was skipped is wholly done."""
        done = int(share * self._sizes[source.doc_id])
        self._done_in_all += done - self._done[source.doc_id]
        self._done[source.doc_id] = done
        self._report.step("embed", -(-self._done_in_all // KIB), -(-self._total // KIB))


def _size(source: Source) -> int:
    try:
        return source.path.stat().st_size
    except OSError:  # reported when the file is read
        return 0
