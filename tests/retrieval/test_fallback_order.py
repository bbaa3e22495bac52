"""Fresh exact, fresh semantic, a shared search, stale, less, none: each with its reason and age, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from services.contracts.search import RetrieveReply, RetrieveRequest
from services.retrieval.cache import CachedResult
from services.retrieval.embedder import EmbedderBusy
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.pool import DatabaseDown
from services.retrieval.search import MAX_REFRESHES, Retrieval
from services.retrieval.store import SearchFailed
from tests.retrieval.fakes import ALL, FakeCache, FakeEmbedder, FakeSimilar, FakeStore, metrics, passage
from tests.virtual import run

EXACT = CachedResult([passage("exact")], ALL, age_s=10.0, fresh=True)
EXACT_OLD = CachedResult([passage("exact, old")], ALL, age_s=400.0, fresh=False)
LIKE = CachedResult([passage("like")], ALL, age_s=20.0, fresh=True)
LIKE_OLD = CachedResult([passage("like, old")], ALL, age_s=500.0, fresh=False)
HANGS_S = 3600.0
BUDGET_MS = 100.0
ANSWER_BY_S = 0.095


@dataclass
class House:
    """A retrieval over stand-ins."""

    cache: FakeCache = field(default_factory=FakeCache)
    similar: FakeSimilar | None = field(default_factory=FakeSimilar)
    embedder: FakeEmbedder = field(default_factory=FakeEmbedder)
    store: FakeStore = field(default_factory=FakeStore)
    metrics: RetrievalMetrics = field(default_factory=metrics)

    def __post_init__(self) -> None:
        self.retrieval = Retrieval(
            embedder=self.embedder, store=self.store, cache=self.cache, similar=self.similar, metrics=self.metrics,
            budget_s=BUDGET_MS / 1000, ttl_s=300.0,
        )  # fmt: skip

    async def ask(self, **fields: object) -> RetrieveReply:
        words: dict[str, object] = {"query": "why?", "tenant": "demo", "budget_ms": BUDGET_MS, **fields}
        return await self.retrieval.retrieve(RetrieveRequest(**words))  # type: ignore[arg-type]

    def counted(self, cache: str) -> dict[str, float]:
        """weir_cache_total of that cache, by result."""
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return {
            sample.labels["result"]: sample.value
            for sample in samples
            if sample.name == "weir_cache_total" and sample.labels["cache"] == cache and sample.value
        }

    def joined(self) -> float | None:
        return self.metrics.registry.get_sample_value("weir_retrieval_coalesced_total")


def asked(house: House, **fields: object) -> tuple[RetrieveReply, float]:
    """The reply, and the second at which it came."""

    async def main() -> tuple[RetrieveReply, float]:
        return await house.ask(**fields), asyncio.get_running_loop().time()

    return run(main())


@pytest.mark.parametrize(
    ("cache", "like", "store", "source", "reason", "age_s", "text", "work"),
    [
        (EXACT, LIKE, "answers", "cache", "fresh", 10.0, "exact", (0, 0)),
        (EXACT_OLD, LIKE, "answers", "semantic", "similar", 20.0, "like", (1, 0)),
        (EXACT_OLD, LIKE_OLD, "answers", "db", None, 0.0, "from the database", (1, 1)),
        (None, None, "answers", "db", None, 0.0, "from the database", (1, 1)),
        (None, LIKE, "is down", "semantic", "similar", 20.0, "like", (1, 0)),
        (EXACT_OLD, LIKE_OLD, "fails", "stale", "search_failed", 400.0, "exact, old", (1, 1)),
        (None, LIKE_OLD, "fails", "stale", "search_failed", 500.0, "like, old", (1, 1)),
        (None, None, "fails", "none", "search_failed", 0.0, None, (1, 1)),
        (EXACT_OLD, LIKE_OLD, "hangs", "stale", "budget_spent", 400.0, "exact, old", (1, 1)),
        (None, LIKE_OLD, "hangs", "stale", "budget_spent", 500.0, "like, old", (1, 1)),
        (None, None, "hangs", "none", "budget_spent", 0.0, None, (1, 1)),
    ],
)
def test_the_first_that_can_be_had_is_the_answer(
    cache: CachedResult | None, like: CachedResult | None, store: str, source: str, reason: str | None,
    age_s: float, text: str | None,
    work: tuple[int, int],
) -> None:  # fmt: skip
    house = House(FakeCache(cache), FakeSimilar(like))
    house.store.up = store != "is down"
    house.store.raises = SearchFailed("x") if store == "fails" else None
    house.store.takes_s = HANGS_S if store == "hangs" else 0.002
    reply, took_s = asked(house)
    assert (reply.source, reply.reason, reply.age_s) == (source, reason, age_s)
    assert [found.text for found in reply.results] == ([] if text is None else [text])
    assert (house.embedder.asked, house.store.asked) == work
    assert took_s <= ANSWER_BY_S + 1e-9, "the time for the answer is left, whatever hangs"
    if store == "hangs":
        assert took_s == pytest.approx(ANSWER_BY_S)
        assert (reply.embed_ms, reply.search_ms) == (5.0, pytest.approx(89.0))


def test_a_database_that_is_down_and_no_like_question_is_nothing_and_says_so() -> None:
    without = House(similar=None, store=FakeStore(up=False))
    assert asked(without)[0].reason == "postgres_down"
    assert without.embedder.asked == 0, "a vector would be of no use"
    unlike = House(store=FakeStore(up=False, raises=DatabaseDown()))
    assert asked(unlike)[0].reason == "postgres_down"


def test_a_like_result_is_not_fresh_to_whoever_asks_for_a_younger_one() -> None:
    house = House(similar=FakeSimilar(LIKE))
    assert asked(house, cache_ttl_s=20.0)[0].source == "db"
    assert asked(house, cache_ttl_s=20.1)[0].source == "semantic"


def test_what_was_found_is_kept_for_like_questions_under_all_that_decides_it() -> None:
    similar = FakeSimilar()
    house = House(similar=similar)
    asked(house, top_k=3, cache_ttl_s=60.0)
    ((tenant, version, variant, query, ttl_s),) = similar.kept
    assert (tenant, version, query, ttl_s) == ("demo", 7, "why?", 60.0)
    assert similar.asked == [("demo", 7, variant)]
    for other in ({"hybrid": False}, {"query": "how?"}):
        asked(house, **other)
    assert len({(variant, query) for _, _, variant, query, _ in similar.kept}) == 3, (
        "and not for what is something else"
    )
    assert len({key for key, _, _ in house.cache.put_in}) == 3


def test_without_a_time_to_live_nothing_is_kept_and_nothing_like_it_is_taken() -> None:
    similar = FakeSimilar(LIKE)
    assert asked(House(similar=similar), cache_ttl_s=0)[0].source == "db"
    assert similar.kept == []


def test_a_tenant_of_whom_no_corpus_is_known_is_not_looked_up_and_not_kept() -> None:
    similar = FakeSimilar(LIKE)
    house = House(similar=similar, store=FakeStore(found=[], version=None))
    assert asked(house)[0].source == "db"
    assert (similar.asked, similar.kept) == ([], [])


def test_search_is_told_the_words_unless_meaning_alone_is_asked_for_and_how_hard_to_try() -> None:
    house = House()
    asked(house, effort=0.25, top_k=2)
    asked(house, hybrid=False)
    assert house.store.searches == [("demo", 2, "why?", 0.25), ("demo", 5, "", 1.0)]


def test_a_thousand_equal_misses_at_once_are_one_embedding_and_one_search() -> None:
    house = House()

    async def main() -> list[RetrieveReply]:
        return await asyncio.gather(*(house.ask() for _ in range(1000)))

    replies = run(main())
    assert {(reply.source, reply.reason, reply.results[0].text) for reply in replies} == {
        ("db", None, "from the database")
    }
    assert (house.embedder.asked, house.store.asked) == (1, 1)
    assert len(house.cache.put_in) == 1
    assert house.joined() == 999


def test_a_thousand_who_ask_nearly_what_was_asked_before_are_one_embedding() -> None:
    house = House(similar=FakeSimilar(LIKE))

    async def main() -> None:
        replies = await asyncio.gather(*(house.ask() for _ in range(1000)))
        assert {reply.source for reply in replies} == {"semantic"}
        assert asyncio.get_running_loop().time() == house.cache.takes_s + house.embedder.takes_s

    run(main())
    assert (house.embedder.asked, house.store.asked) == (1, 0)


def test_whoever_asks_for_anything_else_shares_nothing() -> None:
    house = House()
    variants: list[dict[str, object]] = [
        {}, {"query": "how?"}, {"tenant": "rival"}, {"top_k": 6}, {"hybrid": False}, {"cache_ttl_s": 10.0},
    ]  # fmt: skip

    async def main() -> None:
        await asyncio.gather(*(house.ask(**fields) for fields in variants * 2))

    run(main())
    assert (house.embedder.asked, house.store.asked) == (len(variants), len(variants))


def test_the_leaders_leaving_fails_nobody_else_and_the_last_to_leave_ends_the_work() -> None:
    house = House(embedder=FakeEmbedder(takes_s=0.05))

    async def main() -> None:
        leader = asyncio.create_task(house.ask())
        others = [asyncio.create_task(house.ask()) for _ in range(3)]
        await asyncio.sleep(0.02)
        leader.cancel()
        assert {reply.source for reply in await asyncio.gather(*others)} == {"db"}
        assert (house.embedder.asked, house.store.asked) == (1, 1)
        nobody = [asyncio.create_task(house.ask(query="and this?")) for _ in range(3)]
        await asyncio.sleep(0.02)
        for task in nobody:
            task.cancel()
        await asyncio.sleep(1)
        assert (house.embedder.asked, house.store.asked) == (2, 1), "no search for nobody"

    run(main())


@pytest.mark.parametrize("busy", [False, True], ids=["late", "told early"])
def test_a_leader_with_little_time_binds_nobody_who_has_more(busy: bool) -> None:
    class Hasty(FakeEmbedder):
        """Embeds in 50 ms, and says so at once, or does not, to whoever has less."""

        async def embed(self, texts, *, due=None):  # type: ignore[no-untyped-def]
            if busy and due - asyncio.get_running_loop().time() < 0.05:
                raise EmbedderBusy
            return await super().embed(texts, due=due)

    house = House(embedder=Hasty(takes_s=0.05))

    async def main() -> None:
        hasty, patient = await asyncio.gather(house.ask(budget_ms=20.0), house.ask())
        assert (hasty.source, hasty.reason) == ("none", "embedder_busy" if busy else "budget_spent")
        assert (patient.source, patient.reason) == ("db", None)
        assert asyncio.get_running_loop().time() < ANSWER_BY_S

    run(main())


def test_a_failure_is_everyones_who_waits_and_nobodys_who_comes_after() -> None:
    house = House(store=FakeStore(raises=SearchFailed("x")))

    async def main() -> None:
        replies = await asyncio.gather(*(house.ask() for _ in range(10)))
        assert {(reply.source, reply.reason) for reply in replies} == {("none", "search_failed")}
        assert house.store.asked == 1
        house.store.raises = None
        assert (await house.ask()).source == "db"

    run(main())


def test_a_fresh_result_that_is_due_is_the_answer_at_once_and_is_found_anew_once_behind_it() -> None:
    due = CachedResult([passage("exact")], ALL, age_s=290.0, fresh=True, refresh=True)
    house = House(FakeCache(due), FakeSimilar(LIKE))

    async def main() -> None:
        replies = await asyncio.gather(*(house.ask() for _ in range(10)))
        assert {(reply.source, reply.reason) for reply in replies} == {("cache", "fresh")}
        assert asyncio.get_running_loop().time() == house.cache.takes_s, "nobody waits for the search"
        await asyncio.sleep(1)
        assert (house.embedder.asked, house.store.asked) == (1, 1)
        assert len(house.cache.put_in) == 1
        assert house.cache.costs_s == [pytest.approx(0.007)]

    run(main())


def test_what_is_found_anew_behind_answers_is_bounded_and_gives_up_in_time() -> None:
    house = House(
        FakeCache(CachedResult([], ALL, age_s=290.0, fresh=True, refresh=True)), store=FakeStore(takes_s=HANGS_S)
    )

    async def main() -> None:
        for rounds in (1, 2):
            await asyncio.gather(*(house.ask(query=f"question {number}") for number in range(50)))
            await asyncio.sleep(1)
            assert house.embedder.asked == rounds * MAX_REFRESHES

    run(main())


@pytest.mark.parametrize(
    ("cache", "like", "fails", "semantic", "fallback"),
    [
        (EXACT, LIKE, True, {}, {}),
        (None, LIKE, True, {"hit": 1}, {}),
        (None, LIKE_OLD, False, {"stale": 1, "stored": 1}, {}),
        (None, LIKE_OLD, True, {"stale": 1}, {"hit": 1}),
        (EXACT_OLD, None, True, {"miss": 1}, {"hit": 1}),
        (None, None, True, {"miss": 1}, {"miss": 1}),
    ],
)
def test_each_cache_counts_what_became_of_it(
    cache: CachedResult | None,
    like: CachedResult | None,
    fails: bool,
    semantic: dict[str, float],
    fallback: dict[str, float],
) -> None:
    house = House(FakeCache(cache), FakeSimilar(like), store=FakeStore(raises=SearchFailed("x") if fails else None))
    asked(house)
    assert (house.counted("semantic"), house.counted("stale")) == (semantic, fallback)


def test_what_the_semantic_cache_does_not_take_is_counted() -> None:
    house = House(similar=FakeSimilar(is_full=True))
    asked(house)
    assert house.counted("semantic") == {"miss": 1, "not_stored": 1}
