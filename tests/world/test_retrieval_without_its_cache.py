"""What a failing Redis costs a retrieval: the cache, for as long as it lasts, and never an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtests.cluster.valkey import Lie, Refusal
from tests.world.retrievalstand import KNOWN, Stand, stand_up

ALLOWANCE_S = 0.1
PATIENT = {"retrieval_budget_ms": 20_000.0, "redis_timeout_ms": ALLOWANCE_S * 1000}


async def answers_from_the_database(stand: Stand) -> None:
    """What is known and what is new, one after the other and all at once."""
    for _ in range(3):
        answer = await stand.ask(KNOWN)
        assert (answer["source"], answer["reason"]) == ("db", None)
        assert answer["results"][0]["doc_id"] == "river.md"
    answers = await stand.ask_anew(12)
    assert {(answer["source"], answer["reason"]) for answer in answers} == {("db", None)}


def freeze(stand: Stand) -> None:
    assert stand.stores.cache_loop is not None
    stand.stores.cache_loop.freeze()


def partition(stand: Stand) -> None:
    """No packet arrives any more, in either direction."""
    assert stand.stores.cache_loop is not None
    assert stand.node.loop is not None
    ours, theirs = stand.node.loop.host, stand.stores.cache_loop.host
    stand.simulation.network.cut(ours, theirs)
    stand.simulation.network.cut(theirs, ours)


def become(**fault: object) -> Callable[[Stand], None]:
    """The cache's server with that attribute."""

    def change(stand: Stand) -> None:
        for name, value in fault.items():
            setattr(stand.stores.cache, name, value)

    return change


def heal(stand: Stand) -> None:
    """Whatever it was."""
    stores = stand.stores
    assert stores.cache_loop is not None
    assert stand.node.loop is not None
    become(slow_s=0.0, cuts_after=None, lies=None, refuses=None)(stand)
    if stores.cache_loop.is_closed():
        stores.start_cache()
    stores.cache_loop.thaw()
    ours, theirs = stand.node.loop.host, stores.cache_loop.host
    stand.simulation.network.heal(ours, theirs)
    stand.simulation.network.heal(theirs, ours)


FAULTS: dict[str, Callable[[Stand], None]] = {
    "frozen": freeze,
    "gone": lambda stand: stand.stores.kill_cache(),
    "partitioned": partition,
    "resetting every connection": become(cuts_after=0),
    "slow": become(slow_s=2 * ALLOWANCE_S),
    "slower still": become(slow_s=4.0),
    "cut in every answer": become(cuts_after=3),
    "loading": become(refuses=Refusal.LOADING),
    "another's values": become(lies=Lie.ANOTHERS),
    "halves of values": become(lies=Lie.TRUNCATED),
    "garbage for values": become(lies=Lie.GARBAGE),
    "garbage for answers": become(lies=Lie.NO_PROTOCOL),
}


@pytest.mark.parametrize("name", FAULTS)
def test_while_redis_fails_every_answer_comes_from_the_database_and_then_the_cache_is_back(name: str) -> None:
    async def scenario(stand: Stand) -> None:
        FAULTS[name](stand)
        for _ in range(3):
            await answers_from_the_database(stand)
        heal(stand)

    stand_up(scenario, **PATIENT)


@pytest.mark.parametrize("name", ["frozen", "gone", "partitioned", "slow", "loading"])
def test_a_redis_that_does_not_serve_is_left_alone_and_said_to_be_missing(name: str) -> None:
    async def scenario(stand: Stand) -> None:
        FAULTS[name](stand)
        await stand.until_missing("redis")
        errors = await stand.metric("weir_cache_total", result="error")
        skipped = await stand.metric("weir_cache_total", result="skipped")
        await answers_from_the_database(stand)
        assert await stand.metric("weir_cache_total", result="error") == errors
        assert await stand.metric("weir_cache_total", result="skipped") >= skipped + 15
        heal(stand)

    stand_up(scenario, **PATIENT)


def test_a_redis_too_slow_for_reads_is_left_alone_for_as_long_as_it_is() -> None:
    """It answers within the time that a write is given, and in no reader's."""

    async def scenario(stand: Stand) -> None:
        become(slow_s=0.1)(stand)
        await stand.until_missing("redis")
        errors, looks = await stand.metric("weir_cache_total", result="error"), stand.stores.cache.accepted

        async def was_looked_at_again() -> bool:
            await answers_from_the_database(stand)
            assert await stand.metric("weir_dependency_up", dependency="redis") == 0
            return stand.stores.cache.accepted >= looks + 3

        await stand.until(was_looked_at_again)
        assert await stand.metric("weir_cache_total", result="error") == errors
        heal(stand)

    stand_up(scenario, **{**PATIENT, "redis_timeout_ms": 15.0})


def test_a_redis_that_loses_everything_is_filled_again() -> None:
    async def scenario(stand: Stand) -> None:
        stand.stores.cache.lose_everything()
        assert await stand.source(KNOWN) == "db"
        await stand.until_source("cache", KNOWN)
        stand.stores.kill_cache()
        await answers_from_the_database(stand)
        stand.stores.start_cache()

    stand_up(scenario, **PATIENT)


@pytest.mark.parametrize("refusal", [Refusal.OOM, Refusal.READONLY])
def test_a_full_redis_keeps_nothing_new_and_gives_out_what_it_has(refusal: Refusal) -> None:
    async def scenario(stand: Stand) -> None:
        become(refuses=refusal)(stand)
        before = await stand.metric("weir_cache_total", result="stored")
        for _ in range(5):
            assert await stand.source("Is there room for one more?") == "db"
            assert await stand.source(KNOWN) == "cache"
        await stand.until_missing()
        assert await stand.metric("weir_cache_total", result="stored") == before
        heal(stand)
        await stand.until_source("cache", "Is there room for one more?")

    stand_up(scenario, **PATIENT)


def test_the_same_seed_gives_the_same_run() -> None:
    async def scenario(stand: Stand) -> None:
        freeze(stand)
        await answers_from_the_database(stand)
        heal(stand)

    assert stand_up(scenario, seed=7, **PATIENT) == stand_up(scenario, seed=7, **PATIENT)
