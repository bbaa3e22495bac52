"""How far was looked: what looked at least as far serves, kept or under way, and nothing else does, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.search import Passage, RetrieveReply, RetrieveRequest
from services.retrieval.cache import CachedResult
from services.retrieval.search import Retrieval
from services.retrieval.search_params import SearchParams
from services.retrieval.semantic import Semantic
from services.retrieval.store import SearchFailed
from tests.retrieval.fakes import FakeCache, FakeEmbedder, FakeStore, metrics, passage
from tests.retrieval.modelcache import ModelCache
from tests.virtual import run

BUDGET_S = 0.1
TTL_S = 60.0
EFFORTS = (0.25, 0.5, 1.0)
DEPTHS = (1, 3, 5)


class TellingStore(FakeStore):
    """Finds as many passages as it is asked for; each says with how much effort it was found."""

    def passages(self, tenant: str, top_k: int, query: str, effort: float) -> list[Passage]:
        return [passage(f"{query} {effort}")] * top_k


class DirectedEmbedder(FakeEmbedder):
    """A direction of its own for each question."""

    async def embed(self, texts, *, due=None):  # type: ignore[no-untyped-def]
        embedded = await super().embed(texts, due=due)
        for row, text in enumerate(texts):
            embedded.vectors[row, int(text)] = 1.0
        return embedded


@dataclass
class House:
    """A retrieval with both caches, over a store that says how far it looked."""

    is_exact: bool
    is_similar_on: bool = False
    takes_s: float = 0.02
    cache: ModelCache = field(default_factory=ModelCache)

    def __post_init__(self) -> None:
        self.store = TellingStore(is_exact=self.is_exact, takes_s=self.takes_s)
        self.embedder = DirectedEmbedder()
        clock = lambda: asyncio.get_running_loop().time()  # noqa: E731
        similar = Semantic(threshold=0.99, stale_s=TTL_S, tenant_entries=10, max_bytes=1 << 20, clock=clock)
        self.retrieval = Retrieval(
            embedder=self.embedder, store=self.store, cache=self.cache, metrics=metrics(), budget_s=BUDGET_S,
            ttl_s=TTL_S, similar=similar if self.is_similar_on else None,
        )  # fmt: skip

    async def ask(self, effort: float, depth: int = 5, question: str = "1") -> RetrieveReply:
        return await self.retrieval.retrieve(
            RetrieveRequest(question, "demo", top_k=depth, effort=effort, budget_ms=BUDGET_S * 1000)
        )


def efforts(results: list[Passage]) -> set[float]:
    return {float(each.text.split(" ")[1]) for each in results}


@pytest.mark.parametrize("is_similar_on", [False, True])
def test_a_tenant_that_is_searched_exactly_keeps_its_hits_at_every_level(is_similar_on: bool) -> None:
    house = House(is_exact=True, is_similar_on=is_similar_on)

    async def main() -> None:
        assert (await house.ask(0.5)).source == "db"
        for effort in EFFORTS:
            for depth in DEPTHS:
                reply = await house.ask(effort, depth)
                assert (reply.source, len(reply.results), efforts(reply.results)) == ("cache", depth, {1.0})
        assert house.store.asked == 1

    run(main())


@pytest.mark.parametrize("is_similar_on", [False, True])
def test_less_is_given_to_whoever_asks_for_more_only_when_the_search_falls_short(is_similar_on: bool) -> None:
    house = House(is_exact=False, is_similar_on=is_similar_on)

    async def main() -> None:
        assert (await house.ask(0.5)).source == "db"
        assert (await house.ask(0.25)).source == "cache"
        house.store.raises = SearchFailed("x")
        short = await house.ask(1.0)
        assert (short.source, short.reason, efforts(short.results)) == ("stale", "search_failed", {0.5})
        house.store.raises = None
        full = await house.ask(1.0)
        assert (full.source, efforts(full.results)) == ("db", {1.0})
        assert efforts((await house.ask(0.25)).results) == {1.0}

    run(main())


def test_work_under_way_that_looks_as_far_is_joined_and_no_other() -> None:
    house = House(is_exact=False)

    async def main() -> None:
        asked = [(1.0, 5), (0.5, 5), (1.0, 3), (0.25, 1), (1.0, 5), (0.5, 6), (0.25, 6)]
        replies = await asyncio.gather(*(house.ask(*each) for each in asked))
        assert [len(reply.results) for reply in replies] == [depth for _, depth in asked]
        assert [efforts(reply.results) for reply in replies] == [{1.0}] * 5 + [{0.5}] * 2
        assert (house.embedder.asked, house.store.asked) == (2, 2)

    run(main())


def test_what_is_about_to_expire_is_found_anew_as_far_as_it_was() -> None:
    due = CachedResult([passage("kept 1.0")] * 5, SearchParams(1.0, 5), age_s=59.0, fresh=True, refresh=True)
    house = House(is_exact=False, cache=FakeCache(due))  # type: ignore[arg-type]

    async def main() -> None:
        assert (await house.ask(0.25, 1)).source == "cache"
        await asyncio.sleep(1)
        assert house.store.searches == [("demo", 5, "1", 1.0)]

    run(main())


def test_whoever_leaves_a_shared_run_says_how_much_of_it_was_seen() -> None:
    house = House(is_exact=True, takes_s=0.2)
    house.embedder.takes_s = 0.03

    async def main() -> None:
        leader = asyncio.create_task(house.ask(1.0))
        await asyncio.sleep(0.01)
        joiner = await house.ask(1.0, 3)
        assert (joiner.source, joiner.reason) == ("none", "budget_spent")
        assert (joiner.embed_ms, joiner.search_ms) == (pytest.approx(20.0), pytest.approx(75.0))
        await leader

    async def later() -> None:
        leader = asyncio.create_task(house.ask(1.0))
        await asyncio.sleep(0.06)
        hasty = await house.retrieval.retrieve(RetrieveRequest("1", "demo", budget_ms=20.0))
        assert (hasty.reason, hasty.embed_ms, hasty.search_ms) == ("budget_spent", 0.0, pytest.approx(18.0))
        await leader

    run(main())
    house.cache = ModelCache()
    run(later())


ASKS = st.lists(
    st.tuples(
        st.floats(0, 90),
        st.sampled_from(["1", "2"]),
        st.sampled_from(EFFORTS),
        st.sampled_from(DEPTHS),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=15,
)


@settings(max_examples=120)
@given(ASKS, st.booleans(), st.booleans(), st.lists(st.floats(0, 90), max_size=3))
def test_whoever_asks_whenever_what_is_given_as_fresh_was_looked_for_as_far(
    asks: list[tuple[float, str, float, int, int]], is_exact: bool, is_similar_on: bool, bad_times: list[float]
) -> None:
    """And whatever is not, is not called fresh; and a search is made only where nothing that looked as far was had."""
    house = House(is_exact=is_exact, is_similar_on=is_similar_on)

    async def ask(at: float, question: str, effort: float, depth: int, clients: int) -> None:
        await asyncio.sleep(at)
        for reply in await asyncio.gather(*(house.ask(effort, depth, question) for _ in range(clients))):
            assert {each.text.split(" ")[0] for each in reply.results} <= {question}
            if reply.source in ("db", "cache", "semantic"):
                assert len(reply.results) == depth
                assert min(efforts(reply.results)) >= (1.0 if is_exact else effort)
            else:
                assert reply.reason in ("search_failed", "budget_spent")

    async def fail(at: float) -> None:
        await asyncio.sleep(at)
        house.store.raises = SearchFailed("x")
        await asyncio.sleep(5)
        house.store.raises = None

    async def main() -> None:
        await asyncio.gather(*(ask(*each) for each in asks), *map(fail, bad_times))
        if not bad_times:
            assert house.store.asked <= len(asks), "all who ask the same at once share one search"

    run(main())
