"""Passages for /ask, fetched while the request is queued.

The degradation level cuts real work: how many passages are requested, the time and effort of the search (ef_search),
and how many tokens of passages are in the prompt. Cuts are reported to the client. If the request is evicted meanwhile,
it is rejected at once and the retrieval is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import ceil
from typing import Any, TypeVar

from services.core.ladder import LadderLevel
from services.router.config import RouterSettings
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.sizing import Sizes, prompt_bytes
from services.router.parsing.parsed import RetrievalQuery
from services.router.rag import prompt
from services.router.rag.retrieval import Found, RetrievalClient
from services.router.request import InferenceRequest
from services.router.telemetry import spans
from services.router.telemetry.metrics import RouterMetrics
from services.router.telemetry.spans import calling

ANSWER_RESERVE_MS = 50.0  # of the deadline, not available to retrieval
SKIPPED = Found("skipped")

T = TypeVar("T")


class Context:
    """Fetches passages and cuts them to size; `InferenceRequest.messages` builds the prompt from them."""

    def __init__(
        self,
        settings: RouterSettings,
        retrieval: RetrievalClient,
        dispatcher: Dispatcher,
        sizes: Sizes,
        metrics: RouterMetrics,
    ) -> None:
        self.sizes = sizes
        self._settings = settings
        self._retrieval = retrieval
        self._dispatcher = dispatcher
        self._metrics = metrics

    def bytes(self, query: RetrievalQuery) -> int:
        """The prompt's size without passages."""
        return len(query.query.encode("utf-8", "replace")) + len(prompt.SYSTEM)

    def expected_tokens(self, query: RetrievalQuery) -> int:
        """The tokens that the passages will add at level 0; 0 while retrieval does not answer."""
        if not self._retrieval.answers:
            return 0
        return self.sizes.context_tokens(query.top_k, self._settings.context_tokens)

    async def fetch(self, query: RetrievalQuery, request: InferenceRequest) -> None:
        """Fetch the passages into `request` and mark it ready for the scheduler. It holds no slot yet."""
        rung = self._dispatcher.scheduler.settings.ladder[request.level]
        if rung.retrieval:
            await self._look_up(query, rung, request)
        else:
            request.found = SKIPPED
            request.cut("retrieval")
        tokens = self.sizes.tokens(request.model, prompt_bytes(request.messages, None))
        self._dispatcher.ready(asyncio.get_running_loop().time(), request, tokens)

    async def _look_up(self, query: RetrievalQuery, rung: LadderLevel, request: InferenceRequest) -> None:
        """Fetch within the lesser of budget and remaining time. Raises Refused if the request is evicted first."""
        settings = self._settings
        remaining_ms = (request.deadline - asyncio.get_running_loop().time()) * 1000 - ANSWER_RESERVE_MS
        budget_ms = min(settings.retrieval_budget_ms * rung.retrieval_budget_share, max(remaining_ms, 1.0))
        ttl_s = settings.cache_ttl_s if query.cache_ttl_s is None else query.cache_ttl_s
        top_k = max(1, ceil(query.top_k * rung.retrieval_depth_share))
        trace, span = calling(request.trace, "retrieval", asyncio.get_running_loop().time())
        asking = self._retrieval.retrieve(
            query.query, request.tenant, top_k, ttl_s, budget_ms, rung.ef_search_share, trace
        )
        found = await _unless_evicted(request, asking)
        if span is not None:
            spans.found(span, found, asyncio.get_running_loop().time())
        self._metrics.retrieved(found.source, found.seconds)
        if found.source in ("none", "stale"):
            request.cut("retrieval")
        kept = prompt.fit(found.passages, rung.context_tokens(settings.context_tokens))
        if request.level and (top_k < query.top_k or len(kept) < len(found.passages)):
            request.cut("context")
        self.sizes.passages(
            len(found.passages), sum(prompt.estimate_tokens(passage.text) for passage in found.passages)
        )
        request.found = Found(found.source, kept, found.reason, found.seconds)


async def _unless_evicted(request: InferenceRequest, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the request is evicted first, `work` is cancelled and the refusal raised."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    try:
        while request.refusal is None and not task.done():
            request.waiter = loop.create_future()
            either: set[asyncio.Future[Any]] = {task, request.waiter}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        request.waiter = None
        task.cancel()
    if request.refusal is not None:
        raise request.refusal
    return task.result()
