"""What a failing PostgreSQL costs a retrieval: a fresh search, for as long as it lasts, and nothing else.

The same in virtual time, and more faults: `tests/world/test_retrieval_without_its_database.py`.
Each answer is asked for while the fault holds and comes while it still holds: so it did not wait for its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from loadtests.cluster.processes import frozen
from loadtests.faults.proxy.fault import FREEZE, HEALTHY, REFUSE, RESET, Fault
from services.cli.postgres import EmbeddedPostgres
from services.retrieval.config import RetrievalSettings
from tests.real.retrieval.faultstand import KNOWN, FaultStand, stand_up
from tests.retrieval.corpus import BREAD, RIVER, settings_for, take_in, unhurried, write

HASTY_MS = 400.0
REASONS = {"budget_spent", "postgres_busy", "postgres_down", "search_failed", "embedder_busy"}


@pytest.fixture
def settings(postgres_url: str, redis_url: str, tmp_path: Path) -> RetrievalSettings:
    """A budget that a slow database exceeds, and a Redis that may take as long as it likes."""
    made = unhurried(settings_for(postgres_url, redis_url, retrieval_budget_ms=HASTY_MS))
    asyncio.run(take_in(made, write(tmp_path, river_md=RIVER, bread_md=BREAD)))
    return made


async def falls_back(stand: FaultStand) -> None:
    """Something kept is given out as stale, something new is not to be had, and both say why."""
    stale = await stand.kept(KNOWN, cache_ttl_s=0)
    assert stale["source"] == "stale"
    assert stale["reason"] in REASONS
    assert stale["results"][0]["doc_id"] == "river.md"
    for answer in await stand.ask_anew(12):
        assert (answer["source"], answer["results"]) == ("none", [])
        assert answer["reason"] in REASONS
    assert (await stand.kept(KNOWN))["source"] in ("cache", "stale")


WIRES = {
    "frozen": FREEZE,
    "gone": REFUSE,
    "resetting every connection": RESET,
    "cut in every answer": Fault(cut_after_bytes=3),
    "narrow": Fault(rate_bytes_s=20.0),
}


@pytest.mark.parametrize("name", WIRES)
def test_while_the_wire_to_the_database_fails_answers_are_stale_or_none_and_then_fresh_again(
    settings: RetrievalSettings, model: Path, name: str
) -> None:
    async def scenario(stand: FaultStand) -> None:
        await stand.database.become(WIRES[name])
        for _ in range(3):
            await falls_back(stand)
        await stand.database.become(HEALTHY)

    stand_up(settings, model, scenario)


def test_a_stopped_database_delays_no_answer(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(stand: FaultStand) -> None:
        with frozen(postgres.pid):
            for _ in range(3):
                await falls_back(stand)
            await stand.until_missing("postgres")
            await falls_back(stand)

    stand_up(settings, model, scenario)


def test_a_database_that_restarts_under_load_is_joined_again_and_no_answer_fails(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(stand: FaultStand) -> None:
        async with request(stand) as seen:
            await asyncio.to_thread(postgres.stop)
            await stand.until_missing("postgres")
            await falls_back(stand)
            postgres.prepare()
            postgres.spawn()
            assert await asyncio.to_thread(postgres.wait_ready)
            await stand.until_missing()
            await stand.until_source("db", "What holds after a restart?", cache_ttl_s=0)
        assert {source for source, _ in seen} <= {"db", "none"}
        assert {reason for _, reason in seen} <= {None, *REASONS}

    stand_up(settings, model, scenario)


def test_with_every_connection_of_the_server_taken_there_is_no_search_until_one_is_free(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(stand: FaultStand) -> None:
        await stand.database.become(REFUSE)
        await stand.until(stand.has_left_postgres)
        async with taking_every_connection(settings.postgres_url) as hogs:
            await stand.database.become(HEALTHY)
            for _ in range(3):
                await falls_back(stand)
            await hogs.pop().close()
            await stand.until_source("db", "With one connection?")

    stand_up(settings, model, scenario)


def test_documents_take_no_connection_from_the_server_before_searches_have_all_of_theirs(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    async def scenario(stand: FaultStand) -> None:
        assert await stand.documents() == (200, None)
        await stand.database.become(REFUSE)
        await stand.until(stand.has_left_postgres)
        async with taking_every_connection(settings.postgres_url) as hogs:
            await stand.database.become(HEALTHY)
            for _ in range(settings.postgres_pool_size - 1):
                await hogs.pop().close()
                assert await stand.documents() == (503, "store_down")
            await stand.until_source("db", "With all connections but one?")
            assert await stand.documents() == (503, "store_down")
            for _ in range(2):
                await hogs.pop().close()

            async def are_listed() -> bool:
                return await stand.documents() == (200, None)

            await stand.until(are_listed)

    stand_up(settings, model, scenario)


@pytest.mark.parametrize("name", ["frozen", "gone"])
def test_while_the_wire_to_the_database_fails_documents_are_refused_and_delay_nobody_who_searches(
    settings: RetrievalSettings, model: Path, name: str
) -> None:
    impatient = settings.model_copy(update={"postgres_connect_timeout_s": 1.0, "http_timeout_s": 2.0})

    async def scenario(stand: FaultStand) -> None:
        async def are_listed() -> bool:
            return await stand.documents() == (200, None)

        await stand.until(are_listed)  # and its connection lies idle
        await stand.database.become(WIRES[name])
        request = asyncio.create_task(stand.documents())
        await falls_back(stand)
        status, reason = await request
        assert (status, reason) in ((503, "store_down"), (503, "store_busy"))
        await stand.database.become(HEALTHY)
        await stand.until(are_listed)

    stand_up(impatient, model, scenario)


@asynccontextmanager
async def taking_every_connection(url: str) -> AsyncIterator[list[asyncpg.Connection]]:
    """Connect until the server says that it has no more."""
    hogs: list[asyncpg.Connection] = []
    try:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                hogs.append(await asyncpg.connect(url))
        yield hogs
    finally:
        await asyncio.gather(*(hog.close() for hog in hogs))


@asynccontextmanager
async def request(stand: FaultStand) -> AsyncIterator[set[tuple[str, str | None]]]:
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
