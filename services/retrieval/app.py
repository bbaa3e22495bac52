"""The composition root: creates every part of the retrieval service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

from services.core.breaker import Breaker
from services.retrieval.api import EXAMPLES as SEARCH
from services.retrieval.api import RetrievalApi
from services.retrieval.cache import WRITE_TIMEOUT_S, Cache
from services.retrieval.compatibility import CompatibilityCheck
from services.retrieval.config import RetrievalSettings
from services.retrieval.confine import EVERYTHING
from services.retrieval.database import Session, connect, powers
from services.retrieval.documentsapi import EXAMPLES as DOCUMENTS
from services.retrieval.documentsapi import DocumentBounds, DocumentsApi
from services.retrieval.embedder import Model, QueuedEmbedder
from services.retrieval.library import Library
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.modelprocess import ModelProcess
from services.retrieval.on_demand_pool import OnDemandPool
from services.retrieval.pool import ConnectionPool
from services.retrieval.search import Retrieval
from services.retrieval.semantic import Semantic
from services.retrieval.store import Store
from services.retrieval.warming import Warming
from services.retrieval.writing import Quota
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.health import add_health
from services.runtime.internal import inner_checks, is_health
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.service import Service
from services.runtime.telemetry import metrics_app, new_registry
from services.runtime.valkey import redis_client

NAME = "retrieval"
WAITING_PER_CONNECTION = 32
SEMANTIC_ENTRIES = 1000  # per tenant: a look-up compares with all of them
WRITERS = 2  # connections of the documents API, which writes as many documents at once


class Connects(Protocol):
    """Connects to PostgreSQL as `database.connect` does, and raises the same errors."""

    async def __call__(self, url: str, *, timeout_s: float, application: str) -> Any: ...


def build(
    settings: RetrievalSettings,
    model: Path,
    *,
    embeds: Model | None = None,
    connect: Connects = connect,
    rng: Random | None = None,
    log: Log | None = None,
) -> Process:
    """The service over the model in folder `model`, ready to run.

    `embeds` replaces the model's own process. `rng` is the only source of randomness; by default the operating system
    seeds one and makes the ids.
    """
    log, chance = log or Log(NAME, settings.log_level), Random() if rng is None else rng
    drain = Drain()
    registry = new_registry()
    metrics = RetrievalMetrics(registry)
    embeds = embeds or ModelProcess(model, threads=settings.embed_threads)
    embedder = QueuedEmbedder(embeds, queue_size=settings.embed_queue_size, metrics=metrics)

    suspicions: list[str] = []

    async def warmed() -> Session:
        session = await _session(settings, "weir-retrieval", connect)
        try:
            if not suspicions:
                suspicions.append(", ".join(await powers(session.connection)))
                if suspicions[0]:
                    remedy = "python -m services.retrieval.migrate"
                    log.warning("the user of POSTGRES_URL has excessive privileges", user=suspicions[0], remedy=remedy)
            await warming.warm(session)
        except BaseException:
            session.terminate()
            raise
        return session

    pool = connection_pool(settings, warmed, log, chance)
    store = Store(pool, log=log, exact_up_to=settings.exact_search_chunks)
    cache = exact_cache(settings, metrics, log, chance)
    retrieval = Retrieval(
        embedder=embedder,
        store=store,
        cache=cache,
        metrics=metrics,
        budget_s=settings.retrieval_budget_ms / 1000,
        ttl_s=settings.cache_ttl_s,
        similar=semantic_cache(settings),
    )
    compatibility = CompatibilityCheck(embedder, pool, store, log)
    metrics.watch(
        embedder_waiting=lambda: embedder.waiting,
        connections=lambda: pool.open,
        connections_in_use=lambda: pool.in_use,
        unembedded_chunks=lambda: compatibility.unembedded_chunks,
        up={"postgres": lambda: store.up, "redis": lambda: cache.up},
    )
    warming = Warming(embedder, store, sessions=settings.postgres_pool_size)
    searching = RetrievalApi(retrieval, embedder, store, cache, warming)
    library = Library(writers(settings, may_connect=lambda: pool.open >= settings.postgres_pool_size, connect=connect))
    documents = DocumentsApi(library, embedder, model, document_bounds(settings), learn=store.learn)
    api = new_api(
        "Weir retrieval",
        "Passages within a latency budget, vectors, and tenants' documents.",
        examples=(*SEARCH, *DOCUMENTS),
    )
    add_health(api, NAME, searching.ready, drain)
    searching.add_to(api)
    documents.add_to(api)
    service = Service(NAME, api, log=log, drain=drain, rng=rng)

    async def start() -> None:
        await store.start()
        await cache.start()
        await embedder.start()
        if embedder.confined:  # as is the process that parses documents
            lacking = [name for name in EVERYTHING if name not in embedder.confined]
            log.info("child processes are sandboxed", held=list(embedder.confined), lacking=lacking)
        await compatibility.start()
        warming.start()

    async def stop() -> None:
        await warming.stop()
        await compatibility.stop()
        await embedder.stop()
        await cache.stop()
        library.stop()
        await store.stop()

    token = settings.shared_token
    return from_settings(
        settings,
        name=NAME,
        port=settings.retrieval_port,
        port_variable="RETRIEVAL_PORT",
        app=service,
        metrics=metrics_app(registry, log),
        registry=registry,
        log=log,
        drain=drain,
        checks=inner_checks(settings.host, token=token, allowed_hosts=settings.allowed_hosts, is_open=is_health),
        metrics_checks=inner_checks(settings.metrics_host, token=token, allowed_hosts=settings.allowed_hosts),
        start=start,
        stop=stop,
        rng=rng,
        inside=retrieval,
    )


def connection_pool(
    settings: RetrievalSettings, session: Callable[[], Awaitable[Session]], log: Log, chance: Random
) -> ConnectionPool[Session]:
    """The sessions of searches, connected in the background."""
    size = settings.postgres_pool_size
    return ConnectionPool(
        session,
        size=size,
        max_waiting=size * WAITING_PER_CONNECTION,
        log=log,
        chance=chance,
    )


def writers(
    settings: RetrievalSettings, *, may_connect: Callable[[], bool], connect: Connects = connect
) -> OnDemandPool[Session]:
    """The sessions of the documents API, connected on demand."""
    return OnDemandPool(
        partial(_session, settings, "weir-documents", connect),
        size=WRITERS,
        max_waiting=WRITERS * WAITING_PER_CONNECTION,
        may_connect=may_connect,
    )


async def _session(settings: RetrievalSettings, application: str, connect: Connects) -> Session:
    timeout_s = settings.postgres_connect_timeout_s
    connection = await connect(settings.database_url, timeout_s=timeout_s, application=application)
    return Session(connection, pooled=True)


def document_bounds(settings: RetrievalSettings) -> DocumentBounds:
    return DocumentBounds(
        max_bytes=settings.ingest_max_file_bytes,
        max_chunks=settings.document_max_chunks,
        chunk_tokens=settings.chunk_tokens,
        overlap_tokens=settings.chunk_overlap_tokens,
        within_s=settings.http_timeout_s,
        quota=Quota(settings.documents_per_tenant, settings.documents_per_tenant_bytes),
    )


def exact_cache(
    settings: RetrievalSettings, metrics: RetrievalMetrics, log: Log, chance: Random | None = None
) -> Cache:
    timeout_s = settings.redis_timeout_ms / 1000
    client = redis_client(
        settings.redis_url,
        timeout_s=timeout_s,
        connections=settings.redis_pool_size,
        socket_timeout_s=WRITE_TIMEOUT_S,
    )
    return Cache(
        client,
        Breaker(max_open_s=2.0),
        timeout_s=timeout_s,
        stale_s=settings.stale_ttl_s,
        metrics=metrics,
        log=log,
        secret=settings.cache_key_secret.get_secret_value().encode(),
        chance=chance,
    )


def semantic_cache(settings: RetrievalSettings) -> Semantic | None:
    """The semantic cache; None where no threshold is set."""
    if settings.semantic_threshold == 0:
        return None
    return Semantic(
        threshold=settings.semantic_threshold,
        stale_s=settings.stale_ttl_s,
        tenant_entries=SEMANTIC_ENTRIES,
        max_bytes=settings.semantic_max_bytes,
        clock=lambda: asyncio.get_running_loop().time(),
    )
