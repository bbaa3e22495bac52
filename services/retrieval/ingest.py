"""`python -m services.retrieval.ingest PATH...`: documents in, chunked, embedded, and kept in step with the files.

    find files -> compare with the database -> parse and chunk what is new -> embed -> replace -> remove what has gone
                                               `----- in a thread, a few ahead -----'

A second run over the same files embeds nothing: a document is known by a digest of its bytes, of the chunking and of
the model. Each document goes in at once and on its own, so an ingest that was stopped, or killed, goes on where it was.

The next documents are read, parsed and chunked while one is embedded, `READ_AHEAD` of them at most: that bounds memory.

Exit status: 0 everything is in; 1 nothing could be done; 2 wrong usage or settings; 3 done, but files were skipped,
each named with its reason; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import asyncpg
import numpy as np
import typer
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # carries no types

from services.retrieval.config import RetrievalSettings
from services.retrieval.database import SchemaTooNew, connect
from services.retrieval.documents import Unreadable
from services.retrieval.files import Fault, Found, Source, find, read
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM, ModelUnusable, find_model
from services.retrieval.pool import describe
from services.retrieval.preparing import Prepared, Preparer
from services.retrieval.progress import Reporter, Shown, Summary, reporter
from services.retrieval.writing import Corpus, Stored
from services.runtime.settings import load

EXIT_FAILED = 1
EXIT_SKIPPED_SOME = 3
EXIT_STOPPED = 130
EMBED_AT_ONCE = 8
READ_AHEAD = 4  # documents that are ready, or being made so, while one is embedded
YIELD_EVERY = 16
COLUMN_DIMENSIONS = """
SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass('vectors') AND attname = 'embedding'
"""


class IngestFailed(Exception):
    """Nothing more can be done; the message says why and what to do."""


class Encoder(Protocol):
    """The model. Its tokenizer and its layers may be used by two threads, each by one."""

    fingerprint: str

    def count_tokens(self, text: str) -> int: ...

    def tokenize(self, text: str) -> list[int]: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats: ...


class Keeps(Protocol):
    """A tenant's documents in the database."""

    async def documents(self) -> dict[str, Stored]: ...

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
    ) -> None: ...

    async def move(self, doc_id: str, root: str) -> None: ...

    async def remove(self, doc_ids: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to do: files with their number of chunks, files whose folder has moved, ids that have gone."""

    changed: list[tuple[Source, int]]
    moved: list[Source]
    gone: list[str]


Ready = tuple[Prepared, list[list[int]]]
"""A document, and the tokens of its chunks."""


class Ingest:
    """One run, for one tenant."""

    def __init__(
        self, settings: RetrievalSettings, model: Encoder, corpus: Keeps, summary: Summary, report: Reporter
    ) -> None:
        self._max_file_bytes = settings.ingest_max_file_bytes
        self._model = model
        self._corpus = corpus
        self._summary = summary
        self._report = report
        self._preparer = Preparer(
            model.count_tokens, model.fingerprint, settings.chunk_tokens, settings.chunk_overlap_tokens
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._embedder = ThreadPoolExecutor(1, thread_name_prefix="embedder")

    async def run(self, paths: Sequence[Path], *, prune: bool) -> None:
        """The whole of it; with `dry_run` in the summary, all but the writing."""
        found = find(paths)
        self._summary.skipped += found.faults
        plan = await self._plan(found, await self._corpus.documents(), prune=prune)
        if self._summary.dry_run:
            self._summary.embedded = sum(chunks for _, chunks in plan.changed)
        else:
            await self._carry_out(plan)
        self._summary.removed = len(plan.gone)

    async def _plan(self, found: Found, stored: dict[str, Stored], *, prune: bool) -> Plan:
        """Read every file once. Chunks are only counted: the texts of a large corpus would not fit into memory."""
        plan = Plan([], [], [])
        for number, source in enumerate(found.sources, start=1):
            self._compare(source, stored.get(source.doc_id), plan)
            if number % YIELD_EVERY == 0 or number == len(found.sources):
                self._report.step("read", number, len(found.sources))
                await asyncio.sleep(0)
        if prune and self._summary.usable:  # a folder that is empty today may be one that is not mounted
            plan.gone.extend(
                doc_id for doc_id, document in stored.items()
                if document.root in found.whole_roots and doc_id not in found.present
            )  # fmt: skip
            for doc_id in plan.gone:
                self._say("remove", doc_id)
        return plan

    def _compare(self, source: Source, stored: Stored | None, plan: Plan) -> None:
        try:
            data = read(source.path, self._max_file_bytes)
            if stored is not None and stored.content_hash == self._preparer.content_hash(source.path.name, data):
                self._summary.unchanged += 1
                if stored.root != source.root:
                    plan.moved.append(source)
                return
            chunks = len(self._preparer.prepare(source.path.name, data).texts)
        except Unreadable as error:
            self._skip(source, error)
            return
        plan.changed.append((source, chunks))
        self._summary.added += stored is None
        self._summary.updated += stored is not None
        self._say("add" if stored is None else "update", source.doc_id, chunks)

    def _say(self, change: str, doc_id: str, chunks: int = 0) -> None:
        """A dry run names what it would do; a real one shows how far it is."""
        if self._summary.dry_run:
            self._report.change(change, doc_id, chunks)

    def _skip(self, source: Source, error: Unreadable) -> None:
        self._summary.skipped.append(Fault(str(source.path), str(error)))

    async def _carry_out(self, plan: Plan) -> None:
        total = sum(chunks for _, chunks in plan.changed)
        before = 0
        try:
            for source, chunks, ready in self._read_ahead(plan.changed):
                await self._take_in(source, await ready, before, total)
                before += chunks
                self._report.step("embed", before, total)
        finally:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._embedder.shutdown(wait=False, cancel_futures=True)
        for source in plan.moved:
            await self._corpus.move(source.doc_id, source.root)
        if plan.gone:
            await self._corpus.remove(plan.gone)
            self._report.step("remove", len(plan.gone), len(plan.gone))

    def _read_ahead(
        self, changed: Sequence[tuple[Source, int]]
    ) -> Iterator[tuple[Source, int, asyncio.Future[Ready | Unreadable]]]:
        """Each document with the future of what it becomes; those of the next ones have been asked for as well."""
        loop = asyncio.get_running_loop()
        asked: deque[tuple[Source, int, asyncio.Future[Ready | Unreadable]]] = deque()
        for source, chunks in changed:
            asked.append((source, chunks, loop.run_in_executor(self._reader, self._ready, source)))
            if len(asked) > READ_AHEAD:
                yield asked.popleft()
        while asked:
            yield asked.popleft()

    def _ready(self, source: Source) -> Ready | Unreadable:
        """In the reader's thread."""
        try:
            prepared = self._preparer.prepare(source.path.name, read(source.path, self._max_file_bytes))
        except Unreadable as error:
            return error
        return prepared, [self._model.tokenize(text) for text in prepared.texts]

    async def _take_in(self, source: Source, ready: Ready | Unreadable, before: int, total: int) -> None:
        if isinstance(ready, Unreadable):  # it was readable a moment ago
            self._skip(source, ready)
            return
        prepared, tokens = ready
        vectors = np.empty((len(tokens), DIMENSIONS), np.float32)
        for first in range(0, len(tokens), EMBED_AT_ONCE):
            batch = tokens[first : first + EMBED_AT_ONCE]
            vectors[first : first + len(batch)] = await self._embed(batch)
            self._report.step("embed", min(before + first + len(batch), total), total)
        await self._corpus.put(
            source.doc_id,
            root=source.root,
            title=prepared.title,
            content_hash=prepared.content_hash,
            texts=prepared.texts,
            vectors=vectors,
            model=self._model.fingerprint,
        )
        self._summary.embedded += len(prepared.texts)

    async def _embed(self, tokens: Sequence[list[int]]) -> Floats:
        return await asyncio.get_running_loop().run_in_executor(self._embedder, self._model.embed, tokens)


async def check_dimensions(connection: Any, model: str) -> None:
    """Vectors that do not fit are told before anything is embedded. Raises IngestFailed."""
    held = int(await connection.fetchval(COLUMN_DIMENSIONS))
    if held != DIMENSIONS:
        raise IngestFailed(
            f"the model {model} makes vectors of {DIMENSIONS} numbers, and this database holds vectors of {held}: "
            "set EMBED_MODEL_PATH to a model that fits, or POSTGRES_URL to another database"
        )


async def ingest(
    settings: RetrievalSettings, paths: Sequence[Path], *, tenant: str, prune: bool, dry_run: bool, report: Reporter
) -> Summary:
    """Ingest these paths for this tenant. Raises IngestFailed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    summary = Summary(tenant, dry_run)
    threadpool_limits(settings.embed_threads, user_api="blas")
    try:
        model = MiniLM(find_model(settings.embed_model_path))
        timeout_s = settings.postgres_connect_timeout_s
        connection = await connect(settings.postgres_url, timeout_s=timeout_s, application="weir-ingest")
    except ModelUnusable as error:
        raise IngestFailed(str(error)) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SchemaTooNew) as error:
        raise IngestFailed(f"POSTGRES_URL: the database cannot be used: {describe(error)}") from None
    try:
        await check_dimensions(connection, model.name)
        corpus = Corpus(connection, tenant)
        if not dry_run and not await corpus.lock():
            raise IngestFailed(f"another ingest for {tenant} is running: wait for it, or stop it")
        with report:
            await Ingest(settings, model, corpus, summary, report).run(paths, prune=prune)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise IngestFailed(f"the database was lost: {describe(error)}; run again to go on from there") from None
    finally:
        connection.terminate()
    summary.seconds = round(loop.time() - began, 3)
    report.finished(summary)
    return summary


def command(
    paths: Annotated[list[Path], typer.Argument(help="Folders, or single files: .md .txt .rst .html .pdf")],
    tenant: Annotated[str, typer.Option(help="Whose documents they are.")] = "demo",
    prune: Annotated[bool, typer.Option(help="Remove documents whose file has gone from a named folder.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name what would be done, and do nothing.")] = False,
    progress: Annotated[Shown, typer.Option(help="A bar on a terminal, JSON lines, or only the result.")] = Shown.AUTO,
) -> None:
    """Chunk documents, embed them, and keep a tenant's corpus in step with the files."""
    if not tenant.strip() or len(tenant) > 128 or "\x00" in tenant:
        raise typer.BadParameter("is empty, or longer than 128 characters", param_hint="--tenant")
    settings = load(RetrievalSettings)
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it talks about damage that it repairs
    work = ingest(settings, paths, tenant=tenant, prune=prune, dry_run=dry_run, report=reporter(progress))
    try:
        summary = asyncio.run(work)
    except IngestFailed as error:
        sys.stderr.write(f"ingest: {error}\n")
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        sys.stderr.write("ingest: stopped; what is in stays in, and the next run goes on from there\n")
        raise typer.Exit(EXIT_STOPPED) from None
    raise typer.Exit(exit_status(summary))


def exit_status(summary: Summary) -> int:
    """What the shell is told: see the top of this file."""
    if summary.usable == 0:
        return EXIT_FAILED
    return EXIT_SKIPPED_SOME if summary.skipped else 0


def main() -> None:
    """The console entry."""
    typer.run(command)


if __name__ == "__main__":
    main()
