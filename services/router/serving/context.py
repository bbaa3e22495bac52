"""What /ask adds to a question: passages, looked up while the request waits for its turn, as many as its level allows.

The level's rung of the ladder cuts real work: how many passages are asked for, for how long the search may take, with
how much effort (ef_search), and how many tokens of passages stand in the prompt. What was cut is told to the client.

Whoever is turned away meanwhile is told at once, and nothing is looked up for them any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any, NamedTuple, TypeVar

from services.contracts.generate import Message
from services.contracts.search import Passage
from services.core.ladder import LadderLevel
from services.router.asking.asked import Lookup
from services.router.config import RouterSettings
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.sizing import Sizes, prompt_bytes
from services.router.observing import spans
from services.router.observing.life import Life
from services.router.observing.metrics import RouterMetrics
from services.router.observing.spans import calling
from services.router.passages import prompt
from services.router.passages.retrieval import Found, RetrievalClient
from services.router.workers.turn import Turn

ANSWER_RESERVE_MS = 50.0  # of the deadline, which retrieval may not take
SKIPPED = Found("skipped")

T = TypeVar("T")


class Prompt(NamedTuple):
    """The messages, and how to say the same with less context, for the one retry."""

    messages: list[Message] | None
    reduce: Callable[[], list[Message]] | None = None


class Context:
    """Looks up, cuts to size, and writes the prompt."""

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

    def bytes(self, lookup: Lookup) -> int:
        """The prompt's size without any passage."""
        return len(lookup.query.encode("utf-8", "replace")) + len(prompt.SYSTEM)

    def expected_tokens(self, lookup: Lookup) -> int:
        """What the passages will add, at full quality."""
        return self.sizes.context_tokens(lookup.top_k, self._settings.context_tokens)

    async def fetch(self, lookup: Lookup, turn: Turn, life: Life) -> Prompt:
        """Fetch the passages into `life`, write the prompt, and say that the turn could start. It holds no slot yet."""
        rung = self._dispatcher.scheduler.settings.ladder[turn.level]
        if rung.retrieval:
            await self._look_up(lookup, rung, turn, life)
        else:
            life.found = SKIPPED
            life.cut("retrieval")
        written = self._prompt(lookup, life)
        tokens = self.sizes.tokens(turn.model, prompt_bytes(written.messages, None))
        self._dispatcher.ready(asyncio.get_running_loop().time(), turn, tokens)
        return written

    async def _look_up(self, lookup: Lookup, rung: LadderLevel, turn: Turn, life: Life) -> None:
        """Passages within the budget or what remains, whichever is less. What is missing is disclosed.

        Raises Refused when the turn is turned away first.
        """
        settings = self._settings
        remaining_ms = (turn.deadline - asyncio.get_running_loop().time()) * 1000 - ANSWER_RESERVE_MS
        budget_ms = min(settings.retrieval_budget_ms * rung.retrieval_budget_share, max(remaining_ms, 1.0))
        ttl_s = settings.cache_ttl_s if lookup.cache_ttl_s is None else lookup.cache_ttl_s
        top_k = max(1, ceil(lookup.top_k * rung.retrieval_depth_share))
        trace, span = calling(turn.trace, "retrieval", asyncio.get_running_loop().time())
        asking = self._retrieval.retrieve(
            lookup.query, turn.tenant, top_k, ttl_s, budget_ms, rung.ef_search_share, trace
        )
        found = await _unless_turned_away(turn, asking)
        if span is not None:
            spans.found(span, found, asyncio.get_running_loop().time())
        self._metrics.retrieved(found.source, found.seconds)
        if found.source in ("none", "stale"):
            life.cut("retrieval")
        kept = prompt.fit(found.passages, rung.context_tokens(settings.context_tokens))
        if turn.level and (top_k < lookup.top_k or len(kept) < len(found.passages)):
            life.cut("context")
        self.sizes.passages(
            len(found.passages), sum(prompt.estimate_tokens(passage.text) for passage in found.passages)
        )
        life.found = Found(found.source, kept, found.reason, found.seconds)

    def _prompt(self, lookup: Lookup, life: Life) -> Prompt:
        passages = life.found.passages if life.found is not None else []
        reduce = self._reducer(lookup.query, life, passages) if len(passages) > 1 else None
        return Prompt(prompt.build(lookup.query, passages), reduce)

    def _reducer(self, query: str, life: Life, passages: list[Passage]) -> Callable[[], list[Message]]:
        """The retry's prompt: the nearer half of the passages, and the answer says so."""

        def reduce() -> list[Message]:
            fewer = prompt.halved(passages)
            life.cut("context")
            if life.found is not None:
                life.found = Found(life.found.source, fewer, life.found.reason, life.found.seconds)
            return prompt.build(query, fewer)

        return reduce


async def _unless_turned_away(turn: Turn, work: Coroutine[Any, Any, T]) -> T:
    """What `work` brings. When the turn is turned away before that, `work` is cancelled, and its refusal raised."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    try:
        while turn.refusal is None and not task.done():
            turn.waiter = loop.create_future()
            either: set[asyncio.Future[Any]] = {task, turn.waiter}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        turn.waiter = None
        task.cancel()
    if turn.refusal is not None:
        raise turn.refusal
    return task.result()
