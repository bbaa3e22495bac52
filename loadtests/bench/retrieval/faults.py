"""Faults of PostgreSQL and Redis: each begins with its block and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from loadtests.bench.retrieval.stand import Stand
from loadtests.cluster.parts import Store
from loadtests.cluster.processes import frozen
from loadtests.faults.wires import HEALTHY, Wire

DOWN_S = 1.0  # how long a restarting database is down, without its own stopping and starting
LOOK_EVERY_S = 0.05
OF_SERVICES = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'weir-%'"
Condition = Callable[[Stand], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _healthy(stand: Stand) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _slow(wire: Wire) -> AsyncIterator[None]:
    await wire.become("latency 100")
    yield
    await wire.become(HEALTHY)


@asynccontextmanager
async def _frozen(store: Store) -> AsyncIterator[None]:
    with frozen(store.pid):
        yield


@asynccontextmanager
async def _restarting_database(stand: Stand) -> AsyncIterator[None]:
    await asyncio.to_thread(stand.postgres.stop)
    await asyncio.sleep(DOWN_S)
    await stand.database.start()
    yield


@asynccontextmanager
async def _no_connection_left(stand: Stand) -> AsyncIterator[None]:
    """Other clients take every connection of the server, after those of the service were cut."""
    hogs: list[asyncpg.Connection] = []

    async def take_all() -> None:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                hogs.append(await asyncpg.connect(stand.postgres.url))

    try:
        await take_all()
        await stand.database_wire.become("refuse")
        while await hogs[0].fetchval(OF_SERVICES) > 0:
            await asyncio.sleep(LOOK_EVERY_S)
        await take_all()
        await stand.database_wire.become(HEALTHY)
        yield
    finally:
        await asyncio.gather(*(hog.close() for hog in hogs))
        await stand.database_wire.become(HEALTHY)


@asynccontextmanager
async def _full_cache(stand: Stand) -> AsyncIterator[None]:
    stand.valkey.command("CONFIG SET maxmemory-policy noeviction")
    stand.valkey.command("CONFIG SET maxmemory 1")
    yield
    stand.valkey.command("CONFIG SET maxmemory 256mb")
    stand.valkey.command("CONFIG SET maxmemory-policy allkeys-lru")


@asynccontextmanager
async def _gone_cache(stand: Stand) -> AsyncIterator[None]:
    stand.cache.kill()
    yield
    await stand.cache.start()


CONDITIONS: Mapping[str, Condition] = {
    "both healthy": _healthy,
    "PostgreSQL 200 ms slow": lambda stand: _slow(stand.database_wire),
    "PostgreSQL frozen": lambda stand: _frozen(stand.database),
    "PostgreSQL restarting": _restarting_database,
    "PostgreSQL out of connections": _no_connection_left,
    "Redis 200 ms slow": lambda stand: _slow(stand.cache_wire),
    "Redis frozen": lambda stand: _frozen(stand.cache),
    "Redis full": _full_cache,
    "Redis gone": _gone_cache,
}
