"""The faults that a fake Valkey can have, and what the cache makes of each: a miss, and never another's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loadtests.cluster.valkey import FakeValkey, Lie, Refusal
from services.retrieval.cache import WRITE_TIMEOUT_S, CacheKey
from tests.contract.stages import FakeCache, with_cache
from tests.retrieval.cacherig import KEY, PARAMS, RESULTS, Rig
from tests.retrieval.fakes import passage

OTHER = CacheKey("rival", "What is theirs?", "model-1")
TIMEOUT_S = 0.02


def play(scenario: Callable[[Rig, FakeValkey], Awaitable[None]], **breaker: float) -> None:
    stage = FakeCache()

    async def over(rig: Rig) -> None:
        await scenario(rig, stage.server)

    with_cache(stage, over, **breaker)


@pytest.mark.parametrize(
    ("lie", "counted"),
    [
        (Lie.ANOTHERS, "invalid"), (Lie.TRUNCATED, "invalid"), (Lie.GARBAGE, "invalid"), (Lie.NO_PROTOCOL, "error"),
    ],
)  # fmt: skip
def test_a_lie_is_not_believed_and_ends_with_the_liar(lie: Lie, counted: str) -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put()
        await rig.put(OTHER, results=[passage("theirs")])
        server.lies = lie
        assert await rig.get() is None
        assert await rig.get(OTHER) is None
        assert rig.counted(counted) == 2
        server.lies = None
        kept = await rig.get()
        assert kept is not None
        assert kept.results == RESULTS

    play(scenario)


def test_a_value_whose_time_is_over_is_at_most_a_fallback() -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put(ttl_s=1.0)
        await asyncio.sleep(3600)
        server.lies = Lie.ENDED
        kept = await rig.get()
        assert kept is not None
        assert not kept.fresh
        server.lies = None
        assert await rig.get() is None

    play(scenario)


@pytest.mark.parametrize(
    ("refusal", "reads"), [(Refusal.LOADING, False), (Refusal.OOM, True), (Refusal.READONLY, True)]
)
def test_a_server_that_refuses_costs_what_it_refuses(refusal: Refusal, reads: bool) -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put()
        server.refuses = refusal
        stored = rig.counted("stored")
        await rig.try_put(CacheKey("demo", "another", "model-1"))
        assert rig.counted("stored") == stored
        assert (await rig.get() is not None) is reads
        server.refuses = None
        await asyncio.sleep(60)
        assert await rig.get() is not None

    play(scenario)


@pytest.mark.parametrize("bytes_of_it", [0, 1, 3, 100])
def test_an_answer_that_is_cut_is_a_miss_and_the_next_connection_is_sound(bytes_of_it: int) -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put()
        server.cuts_after = bytes_of_it
        assert await rig.get() is None
        server.cuts_after = None
        assert await rig.get() is not None

    play(scenario)


def test_after_a_loss_of_everything_or_a_restart_the_cache_is_filled_again() -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put()
        server.lose_everything()
        assert await rig.get() is None
        assert rig.counted("miss") == 1
        await rig.put()
        server.hang_up()
        await server.stop()
        assert await rig.get() is None
        await server.start()
        assert await rig.get() is None
        await rig.put()
        assert await rig.get() is not None

    play(scenario)


def test_a_server_that_slows_down_and_up_again_keeps_the_order_of_its_answers() -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        keys = [CacheKey("demo", f"query {number}", "model-1") for number in range(10)]
        for number, key in enumerate(keys):
            await rig.put(key, results=[passage(f"{number}")])
        for slow_s in (0.5, 0.0, 0.1, 0.0):
            server.slow_s = slow_s
            asked = [asyncio.create_task(rig.get(key)) for key in keys]
            await asyncio.sleep(0.01)
            server.slow_s = 0.0
            found = await asyncio.gather(*asked)
            assert [kept and kept.results[0].text for kept in found] == [f"{number}" for number in range(10)]

    play(scenario)


def test_a_server_that_stands_still_for_longer_than_a_write_may_take_loses_nothing_that_was_stored() -> None:
    async def scenario(rig: Rig, server: FakeValkey) -> None:
        await rig.put()
        server.frozen = True
        assert await rig.cache.get(KEY, params=PARAMS, version=7, ttl_s=60.0, budget_s=TIMEOUT_S) is None
        await asyncio.sleep(4 * WRITE_TIMEOUT_S)
        server.frozen = False
        assert await rig.get() is not None

    play(scenario)
