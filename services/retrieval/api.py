"""The routes `/retrieve` and `/embed`, and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Response

from services.contracts.search import EmbedReply, EmbedRequest, Passage, RetrieveReply, RetrieveRequest
from services.core.outcome import Outcome
from services.retrieval.cache import Cache
from services.retrieval.embedder import EmbedderFailed, EmbedderFull, QueuedEmbedder
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.search import Retrieval
from services.retrieval.store import Store
from services.retrieval.warming import Warming
from services.runtime.api import Call, body_of, describe, json_answer
from services.runtime.errors import BadInput, Refused
from services.runtime.health import Readiness
from services.runtime.http import Exchange

EXAMPLES = (
    RetrieveRequest(query="How is a request rejected?", tenant="acme"),
    RetrieveReply("db", [Passage("c-1", "notes/rejections", 7, "Weir rejects ...", 0.21)], 0.0, 3.1, 2.4),
    EmbedRequest(input=["one text", "another"]),
    EmbedReply("all-MiniLM-L6-v2", DIMENSIONS, [[0.1, 0.2]], 4),
)


class RetrievalApi:
    """The routes of searches and of the embedder. (`documentsapi.py` has the others.)"""

    def __init__(
        self, retrieval: Retrieval, embedder: QueuedEmbedder, store: Store, cache: Cache, warming: Warming
    ) -> None:
        self._retrieval = retrieval
        self._embedder = embedder
        self._store = store
        self._cache = cache
        self._warming = warming

    def add_to(self, api: FastAPI) -> None:
        found = describe("Passages for a question, within a budget.", request=RetrieveRequest, reply=RetrieveReply)
        api.add_api_route("/retrieve", self.retrieve, methods=["POST"], **found)
        embedded = describe("A vector for each text, in order.", request=EmbedRequest, reply=EmbedReply)
        api.add_api_route("/embed", self.embed, methods=["POST"], **embedded)

    def ready(self) -> Readiness:
        """Ready once the embedder is warm, the database was reached, and warming is done.

        A dependency that is down is listed as `degraded` and does not end readiness: answers lose freshness or passages
        only. An embedder that stops after a fault does end it.
        """
        up = {"embedder": self._embedder.warm, "postgres": self._store.up, "redis": self._cache.up}
        detail: dict[str, object] = {"degraded": [name for name, is_up in up.items() if not is_up]}
        if not self._store.up and self._store.fault is not None:
            detail["postgres"] = self._store.fault
        if self._embedder.warm:
            detail["model"] = self._embedder.fingerprint
        return Readiness(self._embedder.warm and self._store.reached and self._warming.done, detail)

    async def retrieve(
        self, exchange: Call, request: Annotated[RetrieveRequest, Depends(body_of(RetrieveRequest))]
    ) -> Response:
        """POST /retrieve: passages within a budget. If the search falls short, `source` is `stale` or `none`."""
        if request.query.isspace():
            raise BadInput("query: is blank", "query")
        _leave_with_client(exchange)
        refuse_while_loading(self._embedder)
        reply = await self._retrieval.retrieve(request)
        exchange.log.update(
            tenant=request.tenant, source=reply.source, reason=reply.reason, results=len(reply.results),
            embed_ms=reply.embed_ms, search_ms=reply.search_ms,
        )  # fmt: skip
        return json_answer(reply)

    async def embed(self, exchange: Call, request: Annotated[EmbedRequest, Depends(body_of(EmbedRequest))]) -> Response:
        """POST /embed: a vector for each text, in order. Yields to queries."""
        _leave_with_client(exchange)
        refuse_while_loading(self._embedder)
        with embedder_refusals(self._embedder):
            embedded = await self._embedder.embed(request.input)
        exchange.log.update(texts=len(request.input), tokens=embedded.tokens)
        reply = EmbedReply(self._embedder.name, DIMENSIONS, _numbers(embedded.vectors), embedded.tokens)
        return json_answer(reply)


def refuse_while_loading(embedder: QueuedEmbedder) -> None:
    """Raises Refused until the embedder is warm."""
    if not embedder.warm:
        raise Refused(Outcome.NO_CAPACITY, "the embedder is still loading", reason="warming")


@contextmanager
def embedder_refusals(embedder: QueuedEmbedder) -> Iterator[None]:
    """Turn failures of the embedder into refusals."""
    try:
        yield
    except EmbedderFull as full:
        raise Refused(Outcome.YIELD, str(full), reason="embedder_queue", queue_depth=embedder.waiting) from None
    except EmbedderFailed:
        message = "the embedder failed and is restarting"
        raise Refused(Outcome.NO_CAPACITY, message, reason="embedder_failed") from None


def _leave_with_client(exchange: Exchange) -> None:
    """Cancel the handler when its client disconnects, so that a queued text is not embedded."""
    task = asyncio.current_task()
    if task is not None:
        exchange.on_gone(task.cancel)


def _numbers(vectors: Floats) -> list[list[float]]:
    """A float32 has seven significant digits; nine decimals keep them and halve the JSON."""
    numbers: list[list[float]] = vectors.astype(float).round(9).tolist()
    return numbers
