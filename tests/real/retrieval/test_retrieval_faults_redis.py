"""What a failing Redis costs a retrieval, over a real one: the cache, for as long as it lasts, and never an answer.

The same in virtual time, and more faults: `tests/world/test_retrieval_without_its_cache.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtests.cluster.processes import frozen
from loadtests.faults.proxy.fault import FREEZE, HEALTHY, REFUSE, RESET, Fault
from services.cli.valkey import EmbeddedValkey
from services.retrieval.config import RetrievalSettings
from tests.real.retrieval.faultstand import KNOWN, FaultStand, stand_up
from tests.retrieval.corpus import BREAD, RIVER, settings_for, take_in, unhurried, write

ALLOWANCE_MS = 100.0


@pytest.fixture
def settings(postgres_url: str, redis_url: str, tmp_path: Path) -> RetrievalSettings:
    """A budget that nothing here exceeds, and an allowance for Redis that a slow one does."""
    made = settings_for(postgres_url, redis_url, retrieval_budget_ms=20_000.0, redis_timeout_ms=ALLOWANCE_MS)
    asyncio.run(take_in(made, write(tmp_path, river_md=RIVER, bread_md=BREAD)))
    return made


async def answers_from_the_database(stand: FaultStand) -> None:
    """What is known and what is new, one after the other and all at once."""
    for _ in range(3):
        answer = await stand.ask(KNOWN)
        assert (answer["source"], answer["reason"]) == ("db", None)
        assert answer["results"][0]["doc_id"] == "river.md"
    answers = await stand.ask_anew(12)
    assert {(answer["source"], answer["reason"]) for answer in answers} == {("db", None)}


WIRES = {
    "frozen": FREEZE,
    "gone": REFUSE,
    "resetting every connection": RESET,
    "cut in every answer": Fault(cut_after_bytes=3),
    "narrow": Fault(rate_bytes_s=20.0),
}


@pytest.mark.parametrize("name", WIRES)
def test_while_the_wire_to_redis_fails_every_answer_comes_from_the_database_and_then_the_cache_is_back(
    settings: RetrievalSettings, model: Path, name: str
) -> None:
    async def scenario(stand: FaultStand) -> None:
        await stand.cache.become(WIRES[name])
        for _ in range(3):
            await answers_from_the_database(stand)
        await stand.cache.become(HEALTHY)

    stand_up(settings, model, scenario)


def test_a_stopped_redis_costs_no_answer(settings: RetrievalSettings, model: Path, redis: EmbeddedValkey) -> None:
    async def scenario(stand: FaultStand) -> None:
        with frozen(redis.pid):
            await answers_from_the_database(stand)
            await stand.until_missing("redis")
            await answers_from_the_database(stand)

    stand_up(settings, model, scenario)


def test_a_redis_that_restarts_empty_is_filled_again(
    settings: RetrievalSettings, model: Path, redis: EmbeddedValkey
) -> None:
    async def scenario(stand: FaultStand) -> None:
        await asyncio.to_thread(redis.stop)
        await answers_from_the_database(stand)
        redis.prepare()
        redis.spawn()
        assert await asyncio.to_thread(redis.wait_ready)

    stand_up(settings, model, scenario)


def test_a_full_redis_keeps_nothing_new_and_gives_out_what_it_has(
    settings: RetrievalSettings, model: Path, redis: EmbeddedValkey
) -> None:
    async def scenario(stand: FaultStand) -> None:
        redis.command("CONFIG SET maxmemory-policy noeviction")
        redis.command("CONFIG SET maxmemory 1")
        try:
            before = await stand.metric("weir_cache_total", result="stored")
            for _ in range(5):
                assert await stand.source("Is there room for one more?") == "db"
                assert await stand.source(KNOWN) == "cache"
            await stand.until_missing()
            assert await stand.metric("weir_cache_total", result="stored") == before
        finally:
            redis.command("CONFIG SET maxmemory 64mb")
            redis.command("CONFIG SET maxmemory-policy allkeys-lru")
        await stand.until_source("cache", "Is there room for one more?")

    stand_up(unhurried(settings), model, scenario)
