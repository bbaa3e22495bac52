"""The order of fallbacks and the budget, in virtual time: exact to the millisecond, on any machine."""

from __future__ import annotations

import asyncio

import pytest

from services.contracts.search import RetrieveReply, RetrieveRequest
from services.retrieval.cache import CachedResult
from services.retrieval.deadline import DeadlineExceeded
from services.retrieval.embedder import EmbedderBusy, EmbedderFailed, EmbedderFull
from services.retrieval.pool import DatabaseDown, PoolBusy
from services.retrieval.search import SHORTFALLS, Retrieval
from services.retrieval.search_params import SearchParams
from services.retrieval.store import SearchFailed
from tests.retrieval.fakes import ALL, FakeCache, FakeEmbedder, FakeStore, metrics, passage
from tests.virtual import run

FRESH = CachedResult([passage("kept")], ALL, age_s=10.0, fresh=True)
STALE = CachedResult([passage("old")], ALL, age_s=400.0, fresh=False)
HANGS_S = 3600.0
EMBEDDER = (EmbedderFull, EmbedderBusy, EmbedderFailed)


def retrieve(
    *,
    embedder: FakeEmbedder | None = None,
    store: FakeStore | None = None,
    cache: FakeCache | None = None,
    budget_ms: float = 100.0,
    cache_ttl_s: float = 300.0,
) -> tuple[RetrieveReply, float]:
    """The reply, and the milliseconds until it came."""
    retrieval = Retrieval(
        embedder=embedder or FakeEmbedder(),
        store=store or FakeStore(),
        cache=cache or FakeCache(),
        metrics=metrics(),
        budget_s=0.1,
        ttl_s=300.0,
    )

    async def ask() -> tuple[RetrieveReply, float]:
        loop = asyncio.get_running_loop()
        reply = await retrieval.retrieve(RetrieveRequest("why?", "demo", 5, cache_ttl_s, budget_ms))
        return reply, loop.time() * 1000

    return run(ask())


def test_a_miss_is_embedded_searched_and_kept() -> None:
    cache = FakeCache()
    reply, _ = retrieve(cache=cache)
    assert (reply.source, reply.reason) == ("db", None)
    assert reply.results[0].text == "from the database"
    assert (reply.embed_ms, reply.search_ms) == (5.0, 2.0)
    ((key, version, ttl_s),) = cache.put_in
    assert (key.tenant, key.query, key.model, version, ttl_s) == ("demo", "why?", "fake-1", 7, 300.0)
    assert cache.searched_with == [SearchParams(effort=1.0, depth=5)]


def test_a_fresh_entry_is_the_answer_and_nothing_else_is_asked() -> None:
    embedder, store = FakeEmbedder(), FakeStore()
    reply, _ = retrieve(embedder=embedder, store=store, cache=FakeCache(FRESH))
    assert (reply.source, reply.age_s, reply.results) == ("cache", 10.0, FRESH.results)
    assert (embedder.asked, store.asked) == (0, 0)


def test_an_entry_that_is_not_fresh_does_not_replace_a_search() -> None:
    reply, _ = retrieve(cache=FakeCache(STALE))
    assert reply.source == "db"


@pytest.mark.parametrize(("error", "reason"), [(kind("x"), reason) for kind, reason in SHORTFALLS.items()])
@pytest.mark.parametrize(("kept", "source"), [(STALE, "stale"), (None, "none")])
def test_when_the_search_falls_short_what_is_kept_answers_or_else_nothing(
    error: Exception, reason: str, kept: CachedResult | None, source: str
) -> None:
    cache = FakeCache(kept)
    store = FakeStore(raises=None if isinstance(error, EMBEDDER) else error)
    embedder = FakeEmbedder(raises=error if isinstance(error, EMBEDDER) else None)
    reply, _ = retrieve(cache=cache, store=store, embedder=embedder)
    assert (reply.source, reply.reason) == (source, reason)
    assert reply.results == (kept.results if kept else [])
    assert reply.age_s == (400.0 if kept else 0.0)
    assert cache.put_in == [], "only a whole result is kept"


def test_every_shortfall_has_its_words() -> None:
    assert set(SHORTFALLS) == {DeadlineExceeded, DatabaseDown, PoolBusy, SearchFailed, *EMBEDDER}


@pytest.mark.parametrize("budget_ms", [1.0, 20.0, 100.0])
def test_an_embedder_that_hangs_costs_the_budget_less_the_reserve(budget_ms: float) -> None:
    reply, took_ms = retrieve(
        embedder=FakeEmbedder(takes_s=HANGS_S), cache=FakeCache(STALE, takes_s=0), budget_ms=budget_ms
    )
    assert (reply.source, reply.reason, reply.search_ms) == ("stale", "budget_spent", 0.0)
    assert took_ms == pytest.approx(budget_ms - min(budget_ms * 0.1, 5.0))


def test_a_request_may_allow_less_than_the_service_and_not_more() -> None:
    _, took_ms = retrieve(embedder=FakeEmbedder(takes_s=HANGS_S), budget_ms=60_000)
    assert took_ms == pytest.approx(95.0)


def test_a_database_that_is_known_to_be_down_costs_not_even_an_embedding() -> None:
    embedder = FakeEmbedder()
    reply, took_ms = retrieve(embedder=embedder, store=FakeStore(up=False), cache=FakeCache(STALE))
    assert (reply.source, reply.reason) == ("stale", "postgres_down")
    assert (embedder.asked, took_ms) == (0, 1.0)


def test_a_tenant_without_documents_gets_an_empty_answer_that_is_not_kept() -> None:
    cache = FakeCache()
    reply, _ = retrieve(store=FakeStore(found=[], version=None), cache=cache)
    assert (reply.source, reply.results, cache.put_in) == ("db", [], [])


def test_the_time_to_live_is_the_lesser_of_the_requests_and_the_services() -> None:
    cache = FakeCache()
    retrieve(cache=cache, cache_ttl_s=10.0)
    retrieve(cache=cache, cache_ttl_s=86_400.0)
    assert [ttl_s for _, _, ttl_s in cache.put_in] == [10.0, 300.0]


def test_a_vector_is_asked_for_by_the_time_at_which_it_can_still_be_searched_for() -> None:
    embedder, store = FakeEmbedder(), FakeStore(takes_s=0.012)
    retrieval = Retrieval(
        embedder=embedder, store=store, cache=FakeCache(takes_s=0), metrics=metrics(), budget_s=0.1, ttl_s=300.0
    )

    async def ask_three_times() -> list[float]:
        began = []
        for _ in range(3):
            began.append(asyncio.get_running_loop().time())
            await retrieval.retrieve(RetrieveRequest("why?", "demo", 5, 300.0, 100.0))
            store.takes_s = HANGS_S
            await asyncio.sleep(0.001)  # what was left behind has ended, and was learned from
        return [due - at for due, at in zip(embedder.dues, began, strict=True)]

    before_any, after_a_quick_one, after_a_slow_one = run(ask_three_times())
    assert before_any == pytest.approx(0.095)
    assert after_a_quick_one == pytest.approx(0.095 - 0.012 * 1.5)
    assert after_a_slow_one == pytest.approx(0.095 - 0.025), "a quarter of the budget at most"
