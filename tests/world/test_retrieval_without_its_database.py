"""What a failing PostgreSQL costs a retrieval: a fresh search, for as long as it lasts, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from loadtests.cluster.postgres import Lie
from services.retrieval.store import CORPORA_BY_S, CORPORA_EVERY_S
from tests.world.retrievalstand import KNOWN, Stand, stand_up

REASONS = {"budget_spent", "postgres_busy", "postgres_down", "search_failed", "embedder_busy"}
PATIENT = {"retrieval_budget_ms": 20_000.0}


async def falls_back(stand: Stand) -> None:
    """Something kept is given out as stale, something new is not to be had, and both say why."""
    stale = await stand.ask(KNOWN, cache_ttl_s=0)
    assert stale["source"] == "stale"
    assert stale["reason"] in REASONS
    assert stale["results"][0]["doc_id"] == "river.md"
    for answer in await stand.ask_anew(12):
        assert (answer["source"], answer["results"]) == ("none", [])
        assert answer["reason"] in REASONS
    assert (await stand.ask(KNOWN))["source"] in ("cache", "stale")


def become(**fault: object) -> Callable[[Stand], None]:
    """The database's server with that attribute."""

    def change(stand: Stand) -> None:
        for name, value in fault.items():
            setattr(stand.stores.database, name, value)

    return change


def heal(stand: Stand) -> None:
    """Whatever it was."""
    database = stand.stores.database
    become(frozen=False, unreachable=False, round_trip_s=0.001, query_s=0.0, fails=None, lies=None)(stand)
    database.max_connections = 100
    database.start()


def gone(stand: Stand) -> None:
    stand.stores.database.stop()


FAULTS: dict[str, Callable[[Stand], None]] = {
    "frozen": become(frozen=True),
    "gone": gone,
    "partitioned": become(unreachable=True),
    "a wire slower than any budget": become(round_trip_s=60.0),
    "a wire a little slower than the budget": become(round_trip_s=0.5),
    "a wire that leaves no time after the opening": become(round_trip_s=0.3),
    "queries slower than any budget": become(query_s=60.0),
    "errors": become(fails=asyncpg.InternalServerError),
    "a full disk": become(fails=asyncpg.DiskFullError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_while_the_database_fails_answers_are_stale_or_none_and_then_fresh_again(name: str) -> None:
    async def scenario(stand: Stand) -> None:
        FAULTS[name](stand)
        for _ in range(3):
            await falls_back(stand)
        heal(stand)

    stand_up(scenario)


def test_a_database_that_resets_every_connection_again_and_again_costs_no_answer() -> None:
    async def scenario(stand: Stand) -> None:
        for _ in range(20):
            asked = asyncio.create_task(stand.ask_anew(4))
            await asyncio.sleep(0.002)
            stand.stores.database.hang_up()
            for answer in await asked:
                assert answer["source"] in ("db", "none")
                assert answer["reason"] in {None, *REASONS}

    stand_up(scenario)


def test_a_database_that_is_slow_but_within_the_budget_is_waited_for() -> None:
    async def scenario(stand: Stand) -> None:
        become(round_trip_s=0.2, query_s=0.1)(stand)
        for _ in range(2):
            answers = await stand.ask_anew(4)
            assert [answer["source"] for answer in answers] == ["db"] * 4
            assert all(answer["search_ms"] >= 500 for answer in answers)
        heal(stand)

    stand_up(scenario, **PATIENT)


def test_a_frozen_database_is_said_to_be_missing_and_delays_no_answer() -> None:
    async def scenario(stand: Stand) -> None:
        become(frozen=True)(stand)
        await stand.until_missing("postgres")
        began = asyncio.get_running_loop().time()
        await falls_back(stand)
        assert asyncio.get_running_loop().time() - began < 1.5
        heal(stand)

    stand_up(scenario)


def test_a_frozen_database_is_said_to_be_missing_after_one_query_that_is_not_answered() -> None:
    """Not after one for each connection: those that lie idle are no better than the one that was tried."""

    async def scenario(stand: Stand) -> None:
        become(frozen=True)(stand)
        began = asyncio.get_running_loop().time()
        await stand.until_missing("postgres")
        assert asyncio.get_running_loop().time() - began < CORPORA_EVERY_S + CORPORA_BY_S + 0.5
        heal(stand)

    stand_up(scenario, postgres_pool_size=8)


def test_a_database_that_restarts_under_load_is_joined_again_and_no_answer_fails() -> None:
    async def scenario(stand: Stand) -> None:
        async with asking(stand) as seen:
            gone(stand)
            await stand.until_missing("postgres")
            await falls_back(stand)
            heal(stand)
            await stand.until_missing()
            await stand.until_source("db", "What holds after a restart?", cache_ttl_s=0)
        assert {source for source, _ in seen} <= {"db", "none"}
        assert {reason for _, reason in seen} <= {None, *REASONS}

    stand_up(scenario)


def test_with_every_connection_of_the_server_taken_there_is_no_search_until_one_is_free() -> None:
    async def scenario(stand: Stand) -> None:
        stand.stores.database.max_connections = 0
        stand.stores.database.hang_up()
        for _ in range(3):
            await falls_back(stand)
        stand.stores.database.max_connections = 1
        await stand.until_source("db", "With one connection?")
        heal(stand)

    stand_up(scenario)


def test_documents_take_no_connection_from_the_server_before_searches_have_all_of_theirs() -> None:
    async def scenario(stand: Stand) -> None:
        assert await stand.documents() == (200, None)
        database = stand.stores.database
        database.max_connections = 0
        database.hang_up()
        for free in range(1, 4):
            database.max_connections = free
            await asyncio.sleep(5)
            assert await stand.documents() == (503, "store_down")
        await stand.until_source("db", "With all connections but one?")
        database.max_connections = 5

        async def are_listed() -> bool:
            return await stand.documents() == (200, None)

        await stand.until(are_listed)
        heal(stand)

    stand_up(scenario)


@pytest.mark.parametrize("name", ["frozen", "gone", "partitioned", "a wire slower than any budget", "errors"])
def test_while_the_database_fails_documents_are_refused_and_delay_nobody_who_searches(name: str) -> None:
    async def scenario(stand: Stand) -> None:
        async def are_listed() -> bool:
            return await stand.documents() == (200, None)

        await stand.until(are_listed)  # and its connection lies idle
        FAULTS[name](stand)
        asked = asyncio.create_task(stand.documents())
        await falls_back(stand)
        assert await asked in ((503, "store_down"), (503, "store_busy"))
        heal(stand)
        await stand.until(are_listed)

    stand_up(scenario, postgres_connect_timeout_s=1.0, http_timeout_s=2.0)


def test_the_connections_that_are_left_serve_when_no_more_can_be_had() -> None:
    async def scenario(stand: Stand) -> None:
        stand.stores.database.max_connections = len(stand.stores.database.connections)
        for _ in range(3):
            assert {answer["source"] for answer in await stand.ask_anew(12)} == {"db"}
        heal(stand)

    stand_up(scenario, **PATIENT)


def test_a_corpus_that_changes_puts_an_end_to_what_was_cached() -> None:
    async def scenario(stand: Stand) -> None:
        assert await stand.source(KNOWN) == "cache"
        stand.stores.fill("demo", {"weir.md": [KNOWN]})
        await asyncio.sleep(1.5)
        answer = await stand.ask(KNOWN)
        assert (answer["source"], answer["results"][0]["doc_id"]) == ("db", "weir.md")

    stand_up(scenario)


def test_a_database_that_finds_too_little_or_tells_an_old_version_breaks_nothing() -> None:
    async def scenario(stand: Stand) -> None:
        for lie in (Lie.TOO_FEW, Lie.OLD_VERSION):
            become(lies=lie)(stand)
            for answer in await stand.ask_anew(4):
                assert answer["source"] == "db"
            heal(stand)

    stand_up(scenario)


@asynccontextmanager
async def asking(stand: Stand) -> AsyncIterator[set[tuple[str, str | None]]]:
    """Ask something new all the time; what the answers said."""
    seen: set[tuple[str, str | None]] = set()

    async def ask_on() -> None:
        while True:
            for answer in await stand.ask_anew(2):
                seen.add((answer["source"], answer["reason"]))

    task = asyncio.create_task(ask_on())
    try:
        yield seen
    finally:
        assert not task.done(), task
        task.cancel()
        await asyncio.wait({task})
