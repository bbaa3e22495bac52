"""Before it says that it is ready, the service has searched on every session: in virtual time, over stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.retrieval.embedder import WARM_UP, EmbedderFailed
from services.retrieval.pool import Down
from services.retrieval.store import SearchFailed
from services.retrieval.warming import MOST_ROUNDS, TOP_K, Warming
from tests.retrieval.fakes import FakeEmbedder, FakeStore
from tests.virtual_time import run

SESSIONS = 4


class ColdStore(FakeStore):
    """Reached when told so; counts how many search at once."""

    reached = False
    most_at_once = 0
    _now = 0

    def biggest(self) -> str | None:
        return "big"

    async def search(self, *what, **how):  # type: ignore[no-untyped-def]
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await super().search(*what, **how)
        finally:
            self._now -= 1


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


@pytest.mark.parametrize("fault", [Down(), SearchFailed("x")])
def test_a_database_that_fails_is_tried_again_and_at_last_left_for_the_first_client_to_find_out(
    fault: Exception,
) -> None:
    store = ColdStore(raises=fault)
    store.reached = True

    async def scenario(warming: Warming) -> None:
        await asyncio.sleep(1)
        assert warming.done

    warmed(store, scenario)
    assert store.asked == MOST_ROUNDS * SESSIONS


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
