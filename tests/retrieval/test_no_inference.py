"""A reply tells nothing of what others have asked: not by its source, not by an age, and not by the time it took.

Two tenants over one retrieval with everything that tenants share: its caches, its flights, its estimates. What one of
them is told is compared between worlds that differ in what the other one asks. Time is virtual, so equal is equal.
(What is shared beyond this is load: who asks at all takes time from everybody, whatever the question.)
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.contracts.search import Passage, RetrieveReply, RetrieveRequest
from services.core.breaker import Breaker
from services.retrieval.cache import Cache
from services.retrieval.embedder import Embedded
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.search import Retrieval
from services.retrieval.semantic import Semantic
from services.retrieval.store import SearchFailed
from tests.retrieval.fakes import FakeEmbedder, FakeStore, Lines, metrics, passage
from tests.retrieval.memoryredis import MemoryRedis
from tests.virtual import run

TTL_S, STALE_S = 20.0, 60.0
APART_S = 0.0007  # of what would otherwise be at once, whose order is then anybody's guess
THEIRS, OURS = "they", "we"
WORDS = ("weir", "Weir", "river", "River")  # the same to the embedder in either case, and not to the exact cache
ELSEWHERE = {word: word.replace("e", "o") for word in WORDS}  # questions that nobody but they ask


class Even(Random):
    """Chance that everyone has the same of: draws do not depend on how many have drawn before."""

    def random(self) -> float:
        return 0.5


class UncasedEmbedder(FakeEmbedder):
    """A direction of its own for each word, in whatever case."""

    async def embed(self, texts: Sequence[str], *, due: float | None = None) -> Embedded:
        await super().embed(texts, due=due)
        vectors: Floats = np.zeros((len(texts), DIMENSIONS), np.float32)
        for row, text in enumerate(texts):
            vectors[row] = np.random.default_rng(list(text.lower().encode())).normal(size=DIMENSIONS)
        return Embedded(vectors, len(texts))


class TellingStore(FakeStore):
    """Says whose search it was."""

    def passages(self, tenant: str, top_k: int, query: str, effort: float) -> list[Passage]:
        return [passage(f"{tenant}: {query}")] * top_k


@dataclass(frozen=True)
class Question:
    """Who asks what, and when."""

    tenant: str
    at: float
    word: str
    top_k: int = 5
    cache_ttl_s: float = TTL_S
    effort: float = 1.0
    hybrid: bool = True


def told(questions: Sequence[Question], bad_times: Sequence[float]) -> list[tuple[RetrieveReply, float]]:
    """What we are told, and when, if all of this is asked and the database fails at these times."""
    lines = Lines()

    async def main() -> list[tuple[RetrieveReply, float]]:
        loop, counts, store = asyncio.get_running_loop(), metrics(), TellingStore(takes_s=0.02)
        cache = Cache(
            cast(Redis, MemoryRedis()), Breaker(), timeout_s=0.02, stale_s=STALE_S, metrics=counts, log=lines.log,
            secret=b"secret", chance=Even(),
        )  # fmt: skip
        similar = Semantic(threshold=0.99, stale_s=STALE_S, tenant_entries=50, max_bytes=1 << 24, clock=loop.time)
        retrieval = Retrieval(
            embedder=UncasedEmbedder(), store=store, cache=cache, metrics=counts, budget_s=0.1, ttl_s=TTL_S,
            similar=similar,
        )  # fmt: skip

        async def ask(number: int, question: Question) -> tuple[str, RetrieveReply, float]:
            await asyncio.sleep(question.at + number * APART_S)
            fields: dict[str, Any] = {
                "top_k": question.top_k, "cache_ttl_s": question.cache_ttl_s, "effort": question.effort,
                "hybrid": question.hybrid,
            }  # fmt: skip
            reply = await retrieval.retrieve(RetrieveRequest(question.word, question.tenant, **fields))
            assert all(each.text.startswith(f"{question.tenant}:") for each in reply.results)
            return question.tenant, reply, loop.time()

        async def fail(at: float) -> None:
            await asyncio.sleep(at - APART_S)
            store.raises = SearchFailed("x")
            await asyncio.sleep(3)
            store.raises = None

        ours = [question for question in questions if question.tenant == OURS]
        theirs = [question for question in questions if question.tenant != OURS]
        asking = [ask(number, question) for number, question in (*enumerate(ours), *enumerate(theirs))]
        answers, _ = await asyncio.gather(asyncio.gather(*asking), asyncio.gather(*map(fail, bad_times)))
        await asyncio.sleep(1)
        await cache.stop()
        return [(reply, at) for tenant, reply, at in answers if tenant == OURS]

    try:
        return run(main())
    finally:
        lines.log.close()


def asked_by(tenant: str) -> st.SearchStrategy[Question]:
    return st.builds(
        Question,
        tenant=st.just(tenant),
        at=st.builds(operator.add, st.integers(1, 40), st.sampled_from([0.0, 0.005, 0.01, 0.03])),
        word=st.sampled_from(WORDS),
        top_k=st.sampled_from([1, 5]),
        cache_ttl_s=st.sampled_from([0.0, 5.0, TTL_S]),
        effort=st.sampled_from([0.25, 1.0]),
        hybrid=st.booleans(),
    )


WE = st.lists(asked_by(OURS), min_size=1, max_size=6)
THEY = st.lists(asked_by(THEIRS), max_size=12)
BAD_TIMES = st.lists(st.integers(1, 40).map(float), max_size=2)
TWICE = [Question(OURS, 1.0, "weir"), Question(OURS, 3.0, "weir")]
BETWEEN = Question(THEIRS, 2.0, "weir")
BEFORE, AFTER = Question(THEIRS, 1.0, "weir"), Question(OURS, 2.0, "weir")
AT_ONCE = [Question(tenant, 3.0, "river") for tenant in (THEIRS, OURS)]


@settings(max_examples=60)
@given(WE, THEY, BAD_TIMES)
@example(TWICE, [BETWEEN], [])
@example([AFTER], [BEFORE], [])
@example([AFTER], [BEFORE], [2.0])
@example([Question(OURS, 2.0, "Weir")], [BEFORE], [2.0])
@example(AT_ONCE[1:], AT_ONCE[:1], [])
def test_whatever_others_ask_the_reply_and_the_time_it_takes_are_the_same(
    we: list[Question], they: list[Question], bad_times: list[float]
) -> None:
    elsewhere = [Question(**{**vars(each), "word": ELSEWHERE[each.word]}) for each in they]
    assert told([*they, *we], bad_times) == told([*elsewhere, *we], bad_times)


@settings(max_examples=60)
@given(WE, THEY, BAD_TIMES)
@example(TWICE, [BETWEEN], [])
@example([AFTER], [BEFORE], [])
@example([AFTER], [BEFORE], [2.0])
@example([Question(OURS, 2.0, "Weir")], [BEFORE], [2.0])
def test_nor_do_source_age_and_reason_tell_whether_anyone_else_has_asked_at_all(
    we: list[Question], they: list[Question], bad_times: list[float]
) -> None:
    def said(questions: list[Question]) -> list[tuple[object, ...]]:
        replies = (reply for reply, _ in told(questions, bad_times))
        return [(reply.source, reply.age_s, reply.reason, reply.results) for reply in replies]

    assert said([*they, *we]) == said(we)


def test_our_own_questions_do_tell_so_that_a_world_in_which_nothing_is_kept_would_be_noticed() -> None:
    ours = Question(OURS, 1.0, "weir")
    alike = Question(OURS, 4.0, "Weir")
    assert [reply.source for reply, _ in told([ours, AFTER, alike], [])] == ["db", "cache", "semantic"]
    assert [reply.source for reply, _ in told([AFTER, alike], [2.0])] == ["none", "none"]
    assert [reply.source for reply, _ in told([ours, AFTER, alike], [2.0])] == ["db", "cache", "semantic"]
