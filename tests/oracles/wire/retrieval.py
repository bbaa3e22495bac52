"""The retrieval service: its production composition over an embedder, stores and a library that are given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from services.contracts.documents import DocumentEntry
from services.retrieval import app, documentsapi
from services.retrieval.config import RetrievalSettings
from services.retrieval.documents import UnreadableDocument
from services.retrieval.embedder import EmbedderFailed, EmbedderFull
from services.retrieval.library import StoredDocument
from services.retrieval.parseprocess import ParseRequest
from services.retrieval.pool import DatabaseDown, PoolBusy
from services.retrieval.preparing import PreparedDocument
from services.retrieval.writing import Quota, QuotaExceeded, Used
from services.runtime.serve import Process
from tests.oracles.wire.transcript import Transcript, connect, get, post, request
from tests.oracles.within import given, within
from tests.retrieval.fakes import FakeCache, FakeEmbedder, FakeStore

OURS = {"x_tenant": "demo"}
SLOW_S = 20.0


@dataclass
class Embedder(FakeEmbedder):
    """Warm, unless it is told that it is not."""

    warm: bool = True
    waiting: int = 0
    tokenizer: str = "words"
    confined: tuple[str, ...] = ()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass
class Store(FakeStore):
    reached: bool = True
    fault: str | None = None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def learn(self, tenant: str, version: int) -> None: ...


@dataclass
class Cache(FakeCache):
    up: bool = True

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass
class Library:
    """Documents by tenant and id. `raises`: what a database may do instead."""

    kept: dict[tuple[str, str], StoredDocument] = field(default_factory=dict)
    raises: Exception | None = None

    def _look(self) -> None:
        if self.raises is not None:
            raise self.raises

    async def held(self, tenant: str, doc_id: str, model: str, deadline: float) -> StoredDocument | None:
        self._look()
        return self.kept.get((tenant, doc_id))

    async def page(self, tenant: str, after: str, limit: int, deadline: float) -> list[DocumentEntry]:
        self._look()
        mine = sorted((doc_id, held) for (of, doc_id), held in self.kept.items() if of == tenant and doc_id > after)
        return [DocumentEntry(doc_id, held.title, held.version, held.chunks) for doc_id, held in mine[:limit]]

    async def used(self, tenant: str, deadline: float) -> Used:
        self._look()
        return Used(len(self.kept), 0)

    async def put(
        self,
        tenant: str,
        doc_id: str,
        prepared: PreparedDocument,
        vectors: Any,
        model: str,
        deadline: float,
        quota: Quota,
    ) -> int:
        chunks = len(prepared.texts)
        version = len(self.kept) + 1
        self.kept[tenant, doc_id] = StoredDocument(prepared.title, prepared.content_hash, version, chunks, chunks)
        return version

    async def remove(self, tenant: str, doc_id: str, deadline: float) -> int:
        del self.kept[tenant, doc_id]
        return len(self.kept) + 1

    def stop(self) -> None: ...


@dataclass
class Parts:
    """What the service stands on, to be changed while it runs."""

    process: Process
    embedder: Embedder
    store: Store
    cache: Cache
    library: Library
    warming: SimpleNamespace


async def _nothing() -> None:
    return None


async def _prepared(model: Path, ask: ParseRequest) -> PreparedDocument:
    if ask.data == b"slow":
        await asyncio.sleep(SLOW_S)
    if b"%PDF" in ask.data:
        raise UnreadableDocument("is no PDF that can be read")
    return PreparedDocument("Weir", "", ask.data.decode().split("\n\n"))


@asynccontextmanager
async def _running(**settings: Any) -> AsyncIterator[Parts]:
    embedder, store, cache, library = Embedder(), Store(), Cache(), Library()
    warming = SimpleNamespace(done=True, start=lambda: None, stop=_nothing)
    compatibility = SimpleNamespace(unembedded_chunks=0, start=_nothing, stop=_nothing)
    parts: dict[str, Any] = {
        "QueuedEmbedder": embedder, "Store": store, "exact_cache": cache, "Library": library, "Warming": warming,
        "CompatibilityCheck": compatibility,
    }  # fmt: skip
    bare: dict[str, Any] = {"_env_file": None, "retrieval_port": 0, "metrics_port": 0, **settings}
    with ExitStack() as stack:
        for name, part in parts.items():
            stack.enter_context(mock.patch.object(app, name, lambda *_, part=part, **__: part))
        stack.enter_context(mock.patch.object(documentsapi, "prepare", _prepared))
        process = app.build(RetrievalSettings(**bare), Path(), **given("retrieval"))
        async with within(process):
            yield Parts(process, embedder, store, cache, library, warming)


async def searching() -> str:
    """`/retrieve`, `/embed` and health."""
    told = Transcript("The retrieval service: searches and vectors")
    async with _running() as parts:
        port = parts.process.bound_port

        async def say(name: str, *pieces: bytes | float) -> None:
            await told.say(name, port, *pieces)

        query = {"query": "why?", "tenant": "demo", "budget_ms": 100}
        await say("health", get("/health"))
        await say("readiness", get("/health/ready"))
        await say("a search", post("/retrieve", query))
        parts.store.raises = DatabaseDown("refused")
        await say("the store is down", post("/retrieve", query))
        parts.store.raises = PoolBusy("full")
        await say("the store is busy", post("/retrieve", query))
        parts.store.raises = None
        await say("a budget that is too small", post("/retrieve", {**query, "budget_ms": 1}))
        for name, fields in {
            "a blank query": {"query": " "}, "an empty query": {"query": ""}, "no tenant": {"tenant": ""},
            "too many passages": {"top_k": 51}, "a budget of nothing": {"budget_ms": 0},
        }.items():  # fmt: skip
            await say(name, post("/retrieve", {**query, **fields}))
        await say("no JSON", post("/retrieve", b"{"))
        await say("a field that is missing", post("/retrieve", {"query": "why?"}))
        await say("no vectors", post("/embed", {"input": []}))
        for fault in (EmbedderFull("256 texts wait to be embedded"), EmbedderFailed("it ended")):
            parts.embedder.raises = fault
            await say(f"vectors: {type(fault).__name__}", post("/embed", {"input": ["one"]}))
            await say(f"a search: {type(fault).__name__}", post("/retrieve", query))
        parts.embedder.warm = False
        await say("a search before the embedder is warm", post("/retrieve", query))
        await say("vectors before it is", post("/embed", {"input": ["one"]}))
        parts.store.up, parts.store.fault, parts.cache.up = False, "refused", False
        await say("readiness before it is, with both stores down", get("/health/ready"))
        await say("nothing", get("/nothing"))
        await say("the wrong method", get("/retrieve"))
        await say("a web page's host", get("/health", host="evil.example"))
        await told.say("metrics", parts.process.bound_metrics_port, get("/metrics"), page=True)
        parts.process.drain.begin()
        await say("readiness while it drains", get("/health/ready"))
    return told.text


async def documents() -> str:
    """`/documents`."""
    told = Transcript("The retrieval service: documents")
    async with _running(document_max_chunks=3, ingest_max_file_bytes=1024) as parts:
        library = parts.library

        async def say(name: str, data: bytes) -> None:
            await told.say(name, parts.process.bound_port, data)

        async def put(name: str, doc_id: str, body: Any, **headers: str) -> None:
            await say(name, request("PUT", f"/documents/{doc_id}", body, **{**OURS, **headers}))

        await put("a new one", "guides/weir.md", {"text": "A weir.\n\nIt holds."})
        await put("the same again", "guides/weir.md", {"text": "A weir.\n\nIt holds."})
        await put("another text", "guides/weir.md", {"text": "A dam."})
        await put("a second", "b", {"text": "B", "title": "Bee"})
        await say("the first page", get("/documents?limit=1", **OURS))
        await say("the next page", get("/documents?limit=1&after=b", **OURS))
        await say("another tenant's", get("/documents", x_tenant="acme"))
        await say("without a tenant", get("/documents"))
        await say("a page of nothing", get("/documents?limit=0", **OURS))
        await say("a page by nonsense", get("/documents?limt=1", **OURS))
        await say("a parameter twice", get("/documents?limit=1&limit=2", **OURS))
        await say("a query that is none", get("/documents?after=%ff", **OURS))
        await say("a query with NUL", get("/documents?after=%00", **OURS))
        await put("an id that is too long", "x" * 1025, {"text": "a"})
        await put("a text of another kind", "c", {"text": "a", "media_type": "application/pdf"})
        slow = [await connect(parts.process.bound_port) for _ in range(2)]
        for client, tenant in zip(slow, ("demo", "acme"), strict=True):
            client.transport.write(request("PUT", "/documents/slow", {"text": "slow"}, x_tenant=tenant))
        await asyncio.sleep(0.01)
        await put("another while one is written", "c", {"text": "a"})
        await put("another while two are written", "c", {"text": "a"}, x_tenant="third")
        await asyncio.sleep(SLOW_S)
        await say("one is removed", request("DELETE", "/documents/b", **OURS))
        await say("one that is not there", request("DELETE", "/documents/b", **OURS))
        await put("neither text nor content", "c", {})
        await put("both", "c", {"text": "a", "content": "YQ=="})
        await put("content that is no base64", "c", {"content": "?", "media_type": "text/plain"})
        await put("content of no type", "c", {"content": "YQ=="})
        await put("a type that is not read", "c", {"text": "a", "media_type": "image/png"})
        await put("a field that is not known", "c", {"text": "a", "txt": "b"})
        await put("one that cannot be read", "c", {"content": "JVBERg==", "media_type": "application/pdf"})
        await put("one that is too large", "c", {"text": "x" * 1025})
        await put("one of too many chunks", "c", {"text": "a\n\nb\n\nc\n\nd"})
        await put("an id that is none", "a%00b", {"text": "a"})
        await put("one more than may be kept", "c", {"text": "a"}, x_documents_count="1")
        await put("a quota that is none", "c", {"text": "a"}, x_documents_count="many")
        for label, fault in {
            "Down": DatabaseDown("refused"), "Busy": PoolBusy("full"),
            "QuotaExceeded": QuotaExceeded("a tenant may keep 1 document"),
        }.items():  # fmt: skip
            library.raises = fault
            await put(f"the database: {label}", "c", {"text": "a"})
        library.raises = None
        parts.embedder.raises = EmbedderFull("256 texts wait to be embedded")
        await put("the embedder is full", "c", {"text": "a"})
        parts.embedder.warm = False
        await put("the embedder is not warm", "c", {"text": "a"})
    return told.text
