"""Embeds stored chunks with another model, from their texts in the database.

It needs no files, so it covers documents from the API as well. The old model's vectors stay, and services with that
model go on with them. Chunks are read in pages, each in its own transaction: memory is bounded, and a stopped run
continues where it was. A document that is replaced meanwhile is read again; a new one is left for the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from services.retrieval.files import Fault
from services.retrieval.minilm import MiniLM
from services.retrieval.progress import Reembedded, Reporter
from services.retrieval.vectors import Texts, Vectors, embedded_by_others, unembedded
from services.retrieval.weights import Floats
from services.retrieval.writing import Corpus

CHUNKS_AT_ONCE = 64
DOCUMENTS_AT_ONCE = 1000
ANOTHER_RUNS = "another ingest of this tenant is running: run this again after it"


class Completing:
    """Embeds the chunks of one tenant's documents that lack a vector of one model."""

    def __init__(self, model: MiniLM, vectors: Vectors, added: Callable[[int], None]) -> None:
        """`added` gets the number of chunks of each page that was embedded."""
        self._model = model
        self._vectors = vectors
        self._count_added = added
        self._added = 0

    async def complete(self, doc_id: str) -> None:
        """Embed the chunks of this document that have no vector."""
        while (texts := await self._vectors.texts(doc_id, CHUNKS_AT_ONCE)) is not None:
            made = await asyncio.get_running_loop().run_in_executor(None, self._embed, texts)
            added = await self._vectors.add(doc_id, texts, made)
            self._added += added
            self._count_added(added)

    async def finish(self) -> None:
        """Raise the corpus version once, so that no service keeps results from before."""
        if self._added:
            self._added = 0
            await self._vectors.advance()

    def _embed(self, texts: Texts) -> Floats:
        return self._model.embed([self._model.tokenize(text) for text in texts.texts])


async def reembed(
    connection: Any, model: MiniLM, tenants: Sequence[str] | None, summary: Reembedded, report: Reporter
) -> None:
    """Embed all chunks of these tenants, or of all, that this model has not embedded."""
    lacking = await unembedded(connection, model.fingerprint)
    chosen = {tenant: number for tenant, number in lacking.items() if tenants is None or tenant in tenants}
    total = sum(chosen.values())
    for tenant, number in chosen.items():
        if summary.dry_run:
            summary.tenants += 1
            summary.embedded += number
            report.change("embed", tenant, number)
        else:
            await _one_tenant(connection, model, tenant, total, summary, report)
    if not summary.dry_run:
        left = await unembedded(connection, model.fingerprint)
        summary.left = sum(number for tenant, number in left.items() if tenants is None or tenant in tenants)


async def _one_tenant(
    connection: Any, model: MiniLM, tenant: str, total: int, summary: Reembedded, report: Reporter
) -> None:
    corpus = Corpus(connection, tenant)
    if not await corpus.lock():
        summary.skipped.append(Fault(tenant, ANOTHER_RUNS))
        return
    vectors = Vectors(connection, tenant, model.fingerprint)

    def added(number: int) -> None:
        summary.embedded += number
        report.step("reembed", min(summary.embedded, total), total)

    completing = Completing(model, vectors, added)
    summary.tenants += 1
    after = ""
    try:
        while documents := await vectors.documents(after, DOCUMENTS_AT_ONCE):
            for doc_id in documents:
                await completing.complete(doc_id)
                summary.documents += 1
            after = documents[-1]
        await completing.finish()
    finally:
        await corpus.unlock()


async def forget_others(
    connection: Any, model: MiniLM, tenants: Sequence[str] | None, summary: Reembedded, report: Reporter
) -> None:
    """Remove vectors of other models, only of chunks that this model has embedded."""
    others = await embedded_by_others(connection, model.fingerprint)
    for tenant, number in others.items():
        if tenants is not None and tenant not in tenants:
            continue
        summary.tenants += 1
        if summary.dry_run:
            summary.removed += number
            report.change("forget", tenant, number)
            continue
        removed = await Vectors(connection, tenant, model.fingerprint).forget_others()
        summary.removed += removed
        summary.left += number - removed
