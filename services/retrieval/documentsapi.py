"""`/documents`: a tenant's documents over HTTP. The router names the tenant.

    PUT     identify -> unchanged? -> parse and chunk, in a process -> embed, yielding to queries -> one transaction
    DELETE  one transaction; like a PUT it raises the corpus version, so that cached results become stale
    GET     a page, by id

A digest identifies what was sent, so a repeated PUT costs one look-up. A tenant writes one document at a time, and all
tenants together at most `AT_ONCE`. A tenant whose document took over `SLOW_S` to parse counts as slow for `SLOW_FOR_S`;
slow tenants share `AT_ONCE` - 1 places, so one stays free for others. Above its quota a tenant gets a 403.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np
from fastapi import FastAPI, Response

from services.contracts.documents import (
    PAGE_PARAMETERS,
    DocumentDeleted,
    DocumentEntry,
    DocumentList,
    DocumentPut,
    PutDocument,
    State,
)
from services.core.outcome import Outcome
from services.retrieval.api import embedder_refusals, refuse_while_loading
from services.retrieval.deadline import DeadlineExceeded
from services.retrieval.documentinput import checked_id, content_of, page_of, quota_of, tenant_of
from services.retrieval.documents import UnreadableDocument
from services.retrieval.embedder import QueuedEmbedder
from services.retrieval.library import Library, LibraryFailed, StoredDocument
from services.retrieval.minilm import Floats
from services.retrieval.parseprocess import ParseRequest, prepare
from services.retrieval.pool import DatabaseDown, PoolBusy
from services.retrieval.preparing import DocumentPreparer, PreparedDocument
from services.retrieval.writing import Quota, QuotaExceeded, Used
from services.runtime.api import Call, describe, json_answer
from services.runtime.errors import BadInput, Refused, TooLarge
from services.runtime.http import Exchange
from services.runtime.strictjson import decode

EXAMPLES = (
    PutDocument(text="Weir rejects a request that it cannot answer in time.", title="Rejections"),
    DocumentPut("notes/rejections", "added", "Rejections", 7, 1),
    DocumentDeleted("notes/rejections", 8),
    DocumentList([DocumentEntry("notes/rejections", "Rejections", 7, 1)], None),
)
AT_ONCE = 2
SLOW_S = 3.0
SLOW_FOR_S = 60.0
MAX_SLOW_TENANTS = 1000  # max slow tenants remembered
EMBED_AT_ONCE = 16  # queued texts of one document at a time: the embedder's queue stays open for others


@dataclass(frozen=True, slots=True)
class DocumentBounds:
    """Bounds of one document, the time of a request in seconds, and the default quota."""

    max_bytes: int
    max_chunks: int
    chunk_tokens: int
    overlap_tokens: int
    within_s: float
    quota: Quota


class DocumentsApi:
    """The routes. `learn` receives the tenant and each new corpus version."""

    def __init__(
        self,
        library: Library,
        embedder: QueuedEmbedder,
        model: Path,
        bounds: DocumentBounds,
        *,
        learn: Callable[[str, int], None],
    ) -> None:
        self._library = library
        self._embedder = embedder
        self._model = model
        self._bounds = bounds
        self._learn = learn
        self._writing: set[str] = set()
        self._slow: dict[str, float] = {}  # tenant to the end of its slow time, oldest first

    def add_to(self, api: FastAPI) -> None:
        path = "/documents/{id:rest}"
        description = describe("Add a document, or replace it.", request=PutDocument, reply=DocumentPut)
        description["responses"][201] = description["responses"][200]
        api.add_api_route(path, self.put, methods=["PUT"], **description)
        api.add_api_route(path, self.delete, methods=["DELETE"], **describe("Remove it.", reply=DocumentDeleted))
        paged = describe("The tenant's documents, by id, in pages.", reply=DocumentList, parameters=PAGE_PARAMETERS)
        api.add_api_route("/documents", self.page, methods=["GET"], **paged)

    async def put(self, exchange: Call, id: str) -> Response:
        """PUT /documents/{id}: 201 for a new one, else 200."""
        tenant, doc_id, until = tenant_of(exchange), checked_id(id), self._begin(exchange)
        request, title = self._parse_request(doc_id, decode(exchange.body, PutDocument))
        quota = quota_of(exchange, self._bounds.quota)
        refuse_while_loading(self._embedder)
        with self._write_slot(tenant):
            async with _database():
                held = await self._library.held(tenant, doc_id, self._embedder.fingerprint, until)
            digest = self._digest(request, title)
            if held is not None and held.content_hash == digest:
                if held.vectors < held.chunks:
                    await self._complete(tenant, doc_id, until)
                put = DocumentPut(doc_id, "unchanged", held.title, held.version, held.chunks)
            else:
                put = await self._replace(tenant, doc_id, request, title, digest, held, quota, until)
        exchange.log.update(tenant=tenant, state=put.state, chunks=put.chunks)
        return json_answer(put, status=201 if put.state == "added" else 200)

    async def delete(self, exchange: Call, id: str) -> Response:
        """DELETE /documents/{id}: 404 where there is none."""
        tenant, doc_id, until = tenant_of(exchange), checked_id(id), self._begin(exchange)
        with self._write_slot(tenant):
            async with _database():
                if await self._library.held(tenant, doc_id, self._embedder.fingerprint, until) is None:
                    raise BadInput("no such document", "id", status=404, code="document_not_found")
                version = await self._library.remove(tenant, doc_id, until)
        self._learn(tenant, version)
        exchange.log.update(tenant=tenant, state="deleted")
        return json_answer(DocumentDeleted(doc_id, version))

    async def page(self, exchange: Call) -> Response:
        """GET /documents?after=&limit=: a page, by id."""
        tenant, until = tenant_of(exchange), self._begin(exchange)
        after, limit = page_of(exchange.query)
        async with _database():
            found = await self._library.page(tenant, after, limit + 1, until)
        exchange.log.update(tenant=tenant, documents=min(len(found), limit))
        following = found[limit - 1].id if len(found) > limit else None
        return json_answer(DocumentList(found[:limit], following))

    def _begin(self, exchange: Exchange) -> float:
        """Cancel the handler when its client disconnects; return the deadline of the request."""
        assert exchange.task is not None, "a handler that waits has become a task"
        exchange.on_gone(exchange.task.cancel)
        return asyncio.get_running_loop().time() + self._bounds.within_s

    def _parse_request(self, doc_id: str, document: PutDocument) -> tuple[ParseRequest, str | None]:
        """The document to parse and its title. Raises BadInput or TooLarge."""
        ending, data = content_of(document)
        if len(data) > self._bounds.max_bytes:
            field = "text" if document.text is not None else "content"
            raise TooLarge(f"{field}: is larger than {self._bounds.max_bytes:,} bytes (INGEST_MAX_FILE_BYTES)", field)
        bounds = self._bounds
        name = f"{PurePath(doc_id).stem or 'document'}{ending}"  # its stem is the title if the text has none
        return ParseRequest(
            name, data, self._embedder.tokenizer, bounds.chunk_tokens, bounds.overlap_tokens
        ), document.title

    def _digest(self, request: ParseRequest, title: str | None) -> str:
        preparer = DocumentPreparer(_uncounted, request.tokenizer, request.chunk_tokens, request.overlap_tokens)
        return preparer.content_hash(request.name, (title or "").encode() + b"\0" + request.data)

    async def _replace(
        self,
        tenant: str,
        doc_id: str,
        request: ParseRequest,
        title: str | None,
        digest: str,
        held: StoredDocument | None,
        quota: Quota,
        until: float,
    ) -> DocumentPut:
        if held is None:
            await self._refuse_without_room(tenant, quota, until)
        with self._timed(tenant):
            prepared = await self._prepared(request)
        prepared = replace(prepared, title=title or prepared.title, content_hash=digest)
        model = self._embedder.fingerprint
        vectors = await self._embedded(prepared.texts, until)
        async with _database():
            version = await self._library.put(tenant, doc_id, prepared, vectors, model, until, quota)
        self._learn(tenant, version)
        state: State = "added" if held is None else "updated"
        return DocumentPut(doc_id, state, prepared.title, version, len(prepared.texts))

    async def _refuse_without_room(self, tenant: str, quota: Quota, until: float) -> None:
        """Reject before parsing if one more document cannot fit. The write decides; this saves the work."""
        async with _database():
            used = await self._library.used(tenant, until)
        if fault := quota.fault(Used(used.documents + 1, used.bytes + 1)):
            raise _over_quota(fault)

    async def _complete(self, tenant: str, doc_id: str, until: float) -> None:
        """Embed the stored chunks of a document from another model's time, and keep the other vectors."""
        model = self._embedder.fingerprint
        while True:
            async with _database():
                texts = await self._library.unembedded(tenant, doc_id, model, until)
            if texts is None:
                return
            vectors = await self._embedded(texts.texts, until)
            async with _database():
                self._learn(tenant, await self._library.add_vectors(tenant, doc_id, texts, vectors, model, until))

    async def _prepared(self, request: ParseRequest) -> PreparedDocument:
        try:
            prepared = await prepare(self._model, request)
        except UnreadableDocument as error:
            raise BadInput(f"the document {error}", "content", status=422, code="unreadable_document") from None
        if len(prepared.texts) > self._bounds.max_chunks:
            raise TooLarge(
                f"the document has {len(prepared.texts)} chunks, and {self._bounds.max_chunks} are allowed "
                "(DOCUMENT_MAX_CHUNKS): split it, or use `weir ingest`",
                "content",
            )
        return prepared

    async def _embedded(self, texts: list[str], until: float) -> Floats:
        batches = [texts[first : first + EMBED_AT_ONCE] for first in range(0, len(texts), EMBED_AT_ONCE)]
        try:
            with embedder_refusals(self._embedder):
                async with asyncio.timeout_at(until):
                    return np.concatenate([(await self._embedder.embed(batch)).vectors for batch in batches])
        except TimeoutError:
            message = "the document's chunks could not be embedded in time"
            raise Refused(Outcome.DEADLINE_EXCEEDED, message, reason="deadline") from None

    @contextmanager
    def _write_slot(self, tenant: str) -> Iterator[None]:
        """A place among the writers, or a refusal."""
        if tenant in self._writing:
            message = "another document of this tenant is being written"
            raise Refused(Outcome.YIELD, message, reason="documents_busy", scope="tenant", retry_hint_ms=500)
        loop = asyncio.get_running_loop()
        if len(self._writing) >= AT_ONCE or not self._has_slot(tenant, loop.time()):
            raise Refused(
                Outcome.YIELD, f"{AT_ONCE} documents are being written", reason="documents_busy", retry_hint_ms=1000
            )
        self._writing.add(tenant)
        try:
            yield
        finally:
            self._writing.discard(tenant)

    def _has_slot(self, tenant: str, now: float) -> bool:
        """Whether the tenant is not slow, or a place for slow tenants is free."""
        self._slow = {each: until for each, until in self._slow.items() if until > now}
        return tenant not in self._slow or len(self._writing & self._slow.keys()) < AT_ONCE - 1

    @contextmanager
    def _timed(self, tenant: str) -> Iterator[None]:
        """Mark the tenant as slow if the block takes longer than `SLOW_S`, however it ends."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            if loop.time() - began > SLOW_S:
                self._slow.pop(tenant, None)
                self._slow[tenant] = loop.time() + SLOW_FOR_S
            if len(self._slow) > MAX_SLOW_TENANTS:
                self._slow.pop(next(iter(self._slow)))


@asynccontextmanager
async def _database() -> AsyncIterator[None]:
    """Turn failures of the database into refusals."""
    try:
        yield
    except QuotaExceeded as error:
        raise _over_quota(str(error)) from None
    except (DatabaseDown, LibraryFailed):
        raise Refused(Outcome.NO_CAPACITY, "the document store cannot be reached", reason="store_down") from None
    except (PoolBusy, DeadlineExceeded):
        raise Refused(
            Outcome.NO_CAPACITY, "the document store is too slow at the moment", reason="store_busy"
        ) from None


def _over_quota(fault: str) -> BadInput:
    return BadInput(f"the quota is exhausted: {fault}; remove documents first", status=403, code="quota_exceeded")


def _uncounted(_: str) -> int:
    raise AssertionError("a digest counts no tokens")
