"""No question is the first on its session: mostly in virtual time, over stand-ins; once over real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg
import pytest

from services.retrieval.embedder import WARM_UP, EmbedderFailed
from services.retrieval.minilm import Floats
from services.retrieval.nearest import EXACTLY, SearchStatement
from services.retrieval.pool import DatabaseDown
from services.retrieval.store import SearchFailed, StoreQuery
from services.retrieval.warming import MAX_ROUNDS, SESSION_S, TOP_K, Warming
from tests.retrieval.fakes import FakeEmbedder, FakeStore
from tests.virtual import run

SESSIONS = 4


class ColdStore(FakeStore):
    """Reached when told so; counts how many search at once."""

    reached = False
    most_at_once = 0
    _now = 0

    def biggest(self) -> str | None:
        return "big"

    def query_for(self, tenant: str, vector: Floats, top_k: int, *, model: str, query: str = "") -> StoreQuery:
        return StoreQuery(SearchStatement(f"as {tenant or 'nobody'} by {model}"), EXACTLY, (top_k, query), True)

    async def search(self, *what, **how):  # type: ignore[no-untyped-def]
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await super().search(*what, **how)
        finally:
            self._now -= 1


class NewSession:
    """Takes `takes_s` for each statement, then answers or raises."""

    def __init__(self, takes_s: float = 0.01, raises: Exception | None = None) -> None:
        self.asked: list[tuple[str, str, tuple[object, ...]]] = []
        self._takes_s = takes_s
        self._raises = raises

    async def fetch(
        self, limit_s: float, sql: str, *arguments: object, tenant: str, settings: Mapping[str, str] | None = None
    ) -> list[Any]:
        assert limit_s == SESSION_S
        self.asked.append((tenant, sql, arguments))
        await asyncio.sleep(self._takes_s)
        if self._raises is not None:
            raise self._raises
        return []


def warmed(
    store: ColdStore, scenario: Callable[[Warming], Awaitable[None]], raises: Exception | None = None
) -> FakeEmbedder:
    embedder = FakeEmbedder(raises=raises)

    async def main() -> None:
        warming = Warming(embedder, store, sessions=SESSIONS)
        warming.start()
        await scenario(warming)
        await warming.stop()

    run(main())
    return embedder


def test_every_session_has_searched_for_the_biggest_tenant_and_for_nobody() -> None:
    store = ColdStore()

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(60)
        assert (warming.done, store.asked) == (False, 0), "nothing is asked of a database that was never reached"
        store.reached = True
        await asyncio.sleep(0.02 + 0.005 + 2 * 0.002 + 0.001)
        assert warming.done

    assert warmed(store, scenario).asked == 1
    assert store.searches == [("big", TOP_K, WARM_UP, 1.0)] * SESSIONS + [("", TOP_K, WARM_UP, 1.0)] * SESSIONS
    assert store.most_at_once == SESSIONS, "all at once, or one session would answer for all"


@pytest.mark.parametrize("fault", [DatabaseDown(), SearchFailed("x")])
def test_a_database_that_fails_is_tried_again_and_at_last_left_for_the_first_client_to_find_out(
    fault: Exception,
) -> None:
    store = ColdStore(raises=fault)
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)
        assert warming.done

    warmed(store, scenario)
    assert store.asked == MAX_ROUNDS * SESSIONS


def test_a_service_that_stops_while_it_warms_leaves_nothing_running() -> None:
    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)

    warmed(ColdStore(), scenario)


def test_an_embedder_that_fails_just_then_does_not_keep_the_service_from_being_ready() -> None:
    store = ColdStore()
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)
        assert warming.done

    warmed(store, scenario, raises=EmbedderFailed("killed"))
    assert store.asked == 0


def test_a_session_that_comes_later_searches_before_it_is_lent_as_those_of_the_start_did() -> None:
    store, early, later = ColdStore(), NewSession(), NewSession()
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await warming.warm(early)
        assert early.asked == [], "there is no vector yet, and the start will search on it"
        await asyncio.sleep(1)
        assert warming.done
        await warming.warm(later)

    warmed(store, scenario)
    arguments = (TOP_K, WARM_UP)
    assert later.asked == [("big", "as big by fake-1", arguments), ("", "as nobody by fake-1", arguments)]


def test_a_session_whose_search_the_database_refuses_is_lent_all_the_same() -> None:
    store, session = ColdStore(), NewSession(raises=asyncpg.QueryCanceledError("too slow"))
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)
        await warming.warm(session)

    warmed(store, scenario)
    assert len(session.asked) == 1


@pytest.mark.parametrize(
    ("session", "fault"),
    [(NewSession(takes_s=600), TimeoutError), (NewSession(raises=ConnectionResetError()), ConnectionResetError)],
)
def test_a_session_that_does_not_answer_is_not_lent(session: NewSession, fault: type[Exception]) -> None:
    store = ColdStore()
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(fault):
            await warming.warm(session)
        assert asyncio.get_running_loop().time() - began < 2 * SESSION_S

    warmed(store, scenario)
