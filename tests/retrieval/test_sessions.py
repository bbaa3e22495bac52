"""A pool's session hands over rows before its transaction has ended, and no query is the worse for the one before."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import asyncpg
import pytest

from loadtests.faults.proxy.fault import FREEZE, HEALTHY, Fault
from loadtests.faults.proxy.proxy import HOST, FaultProxy
from services.retrieval.database import NO_TENANT, Session, connect
from services.retrieval.pool import ConnectionPool, DatabaseDown, PoolBusy
from tests.retrieval.fakes import Lines

LIMIT_S = 20.0
TENANTS = ("ada", "ben")
TITLES = "SELECT title FROM documents"  # whose they are is left to the second lock


def over(url: str, scenario: Callable[[Session], Awaitable[None]], *, pooled: bool = True) -> None:
    """The scenario over one session, with a document for each tenant."""

    async def main() -> None:
        connection = await connect(url, timeout_s=LIMIT_S, application="test")
        try:
            for tenant in TENANTS:
                await connection.execute("INSERT INTO corpora VALUES ($1, 1) ON CONFLICT DO NOTHING", tenant)
                document = "INSERT INTO documents VALUES ($1, 'a.md', 'r', $1, 'h', 1) ON CONFLICT DO NOTHING"
                await connection.execute(document, tenant)
            await scenario(Session(connection, pooled=pooled))
        finally:
            await connection.close()

    asyncio.run(main())


async def titles(session: Session, tenant: str) -> list[str]:
    return [row["title"] for row in await session.fetch(LIMIT_S, TITLES, tenant=tenant)]


def test_the_rows_are_there_before_the_transaction_has_ended(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        assert await titles(session, "ada") == ["ada"]
        assert session.unsettled
        await session.settle()
        assert not session.unsettled
        assert await session.connection.fetchval("SELECT current_user = session_user")

    over(postgres_url, scenario)


def test_without_a_pool_a_session_ends_what_it_began(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        assert await titles(session, "ada") == ["ada"]
        assert not session.unsettled
        with pytest.raises(asyncpg.DivisionByZeroError):
            await session.fetch(LIMIT_S, "SELECT 1 / 0", tenant="ada")
        assert not session.unsettled

    over(postgres_url, scenario, pooled=False)


def test_a_query_on_an_unsettled_session_sees_its_own_tenants_rows_alone(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        for tenant in (*TENANTS, NO_TENANT, *reversed(TENANTS)):
            assert await titles(session, tenant) == [each for each in TENANTS if each == tenant]
            assert session.unsettled

    over(postgres_url, scenario)


def test_what_was_set_for_one_query_does_not_reach_the_next(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        shown = "SELECT current_setting('enable_sort') AS sort, current_setting('statement_timeout') AS timeout"
        (before,) = await session.fetch(5.0, shown, tenant="ada", settings={"enable_sort": "off"})
        (after,) = await session.fetch(7.0, shown, tenant="ben")
        assert (before["sort"], before["timeout"]) == ("off", "5s")
        assert (after["sort"], after["timeout"]) == ("on", "7s")

    over(postgres_url, scenario)


def test_each_query_sees_what_was_committed_before_it(postgres_url: str) -> None:
    """An open transaction must not keep on showing an old state."""

    async def scenario(session: Session) -> None:
        assert await titles(session, "ada") == ["ada"]
        writer = await asyncpg.connect(postgres_url)
        await writer.execute("UPDATE documents SET title = 'new' WHERE tenant = 'ada'")
        await writer.close()
        assert await titles(session, "ada") == ["new"]

    over(postgres_url, scenario)


@pytest.mark.parametrize(
    ("sql", "limit_s", "error"),
    [
        ("SELECT 1 / 0", LIMIT_S, asyncpg.DivisionByZeroError),
        ("SELECT nothing", LIMIT_S, asyncpg.UndefinedColumnError),
        ("DELETE FROM documents", LIMIT_S, asyncpg.ReadOnlySQLTransactionError),
        ("SELECT pg_sleep(60)", 0.05, asyncpg.QueryCanceledError),
    ],
)
def test_a_query_that_fails_is_no_burden_to_the_next(
    postgres_url: str, sql: str, limit_s: float, error: type[Exception]
) -> None:
    async def scenario(session: Session) -> None:
        for _ in range(2):
            with pytest.raises(error):
                await session.fetch(limit_s, sql, tenant="ada")
            assert session.unsettled
            assert await titles(session, "ben") == ["ben"]
        with pytest.raises(error):
            await session.fetch(limit_s, sql, tenant="ada")
        await session.settle()
        assert not session.unsettled
        assert await session.connection.fetchval("SELECT current_user = session_user")

    over(postgres_url, scenario)


def test_an_opening_that_fails_leaves_nothing_of_the_query_before(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        assert await titles(session, "ada") == ["ada"]
        with pytest.raises(asyncpg.PostgresError):
            await session.fetch(LIMIT_S, TITLES, tenant="ada", settings={"statement_timeout": "nonsense"})
        assert await titles(session, "ben") == ["ben"]

    over(postgres_url, scenario)


def test_a_statement_is_prepared_once_for_all_queries(postgres_url: str) -> None:
    async def scenario(session: Session) -> None:
        for tenant in TENANTS * 3:
            await titles(session, tenant)
        await session.settle()
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1"
        assert await session.connection.fetchval(prepared, TITLES) == 1

    over(postgres_url, scenario)


def test_when_the_opening_took_all_the_time_the_query_is_not_made_and_the_session_is_sound(postgres_url: str) -> None:
    async def main() -> None:
        port = urlsplit(postgres_url).port
        assert port is not None
        async with FaultProxy(HOST, port) as proxy:
            url = postgres_url.replace(f":{port}/", f":{proxy.port}/")
            connection = await connect(url, timeout_s=LIMIT_S, application="test")
            session = Session(connection, pooled=True)
            await proxy.become(Fault(latency_s=0.1))
            with pytest.raises(asyncpg.QueryCanceledError, match="no time was left"):
                await session.fetch(0.05, "SELECT pg_sleep(0)", tenant="ada")
            await proxy.become(HEALTHY)
            assert await session.fetch(LIMIT_S, "SELECT 1", tenant="ada")
            await session.settle()
            never = "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT pg_sleep(0)'"
            assert await connection.fetchval(never) == 0
            await connection.close()

    asyncio.run(main())


def test_a_server_that_freezes_before_the_end_of_a_transaction_costs_its_session_and_no_caller(
    postgres_url: str,
) -> None:
    """The rows were handed over; what is lost is a connection that the pool makes anew."""

    async def main() -> None:
        port = urlsplit(postgres_url).port
        assert port is not None
        async with FaultProxy(HOST, port) as proxy:
            url = postgres_url.replace(f":{port}/", f":{proxy.port}/")

            async def session() -> Session:
                return Session(await connect(url, timeout_s=LIMIT_S, application="test"), pooled=True)

            log = Lines().log
            pool = ConnectionPool(session, size=1, max_waiting=8, log=log, chance=random.Random(1))
            pool.start()
            try:
                taken = await until_there_is_one(pool)
                assert [row["one"] for row in await taken.fetch(LIMIT_S, "SELECT 1 AS one", tenant="ada")] == [1]
                await proxy.become(FREEZE)
                pool.give_back(taken)
                with pytest.raises((PoolBusy, DatabaseDown)):
                    await pool.take(asyncio.get_running_loop().time() + 0.05)
                async with asyncio.timeout(LIMIT_S):
                    while not taken.is_closed():
                        await asyncio.sleep(0.02)
                await proxy.become(HEALTHY)
                again = await until_there_is_one(pool)
                assert again is not taken
                assert await again.fetch(LIMIT_S, "SELECT 1", tenant="ben")
            finally:
                await pool.stop()
                log.close()

    asyncio.run(main())


async def until_there_is_one(pool: ConnectionPool[Session]) -> Session:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(PoolBusy, DatabaseDown):
                return await pool.take(asyncio.get_running_loop().time() + 0.1)
            await asyncio.sleep(0.02)
