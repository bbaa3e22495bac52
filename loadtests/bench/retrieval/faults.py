"""What can be wrong with PostgreSQL and with Redis. A condition is prepared, then strikes, and ends with its block."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import asyncpg
import psutil

from loadtests.bench.retrieval.stand import Stand

DOWN_S = 1.0  # how long a database that is restarted stays away, its own stopping and starting not counted
LOOK_EVERY_S = 0.05
Strike = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of the servers; `begin` prepares it and gives what makes it so."""

    name: str
    begin: Callable[[Stand], AbstractAsyncContextManager[Strike]]


@asynccontextmanager
async def _healthy(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        return None

    yield strike


@asynccontextmanager
async def _slow_database(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        await stand.database_wire.become("latency 100")

    yield strike
    await stand.database_wire.become("healthy")


@asynccontextmanager
async def _slow_cache(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        await stand.cache_wire.become("latency 100")

    yield strike
    await stand.cache_wire.become("healthy")


@asynccontextmanager
async def _frozen_database(stand: Stand) -> AsyncIterator[Strike]:
    async with _stopped(lambda: stand.database.pid) as strike:
        yield strike


@asynccontextmanager
async def _frozen_cache(stand: Stand) -> AsyncIterator[Strike]:
    async with _stopped(lambda: stand.cache.pid) as strike:
        yield strike


@asynccontextmanager
async def _stopped(pid: Callable[[], int]) -> AsyncIterator[Strike]:
    """SIGSTOP to a process and all that it has started; SIGCONT to those that are left."""
    with contextlib.ExitStack() as after:

        async def strike() -> None:
            after.enter_context(_standing_still(pid()))

        yield strike


@contextlib.contextmanager
def _standing_still(pid: int) -> Iterator[None]:
    server = psutil.Process(pid)
    everyone = [server.pid, *(child.pid for child in server.children(recursive=True))]
    try:
        for each in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        yield
    finally:
        for each in everyone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


@asynccontextmanager
async def _restarting_database(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        await asyncio.to_thread(stand.database.stop)
        await asyncio.sleep(DOWN_S)
        await stand.start_database()

    yield strike


@asynccontextmanager
async def _no_connection_left(stand: Stand) -> AsyncIterator[Strike]:
    """Every connection that the server has is somebody else's, those of the service included, once they were cut."""
    hogs: list[asyncpg.Connection] = []

    async def take_all() -> None:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                hogs.append(await asyncpg.connect(stand.database.url))

    async def strike() -> None:
        await stand.database_wire.become("refuse")
        while await stand.connections(hogs[0]) > 0:
            await asyncio.sleep(LOOK_EVERY_S)
        await take_all()
        await stand.database_wire.become("healthy")

    try:
        await take_all()
        yield strike
    finally:
        await asyncio.gather(*(hog.close() for hog in hogs))
        await stand.database_wire.become("healthy")


@asynccontextmanager
async def _full_cache(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        stand.cache.command("CONFIG SET maxmemory-policy noeviction")
        stand.cache.command("CONFIG SET maxmemory 1")

    yield strike
    stand.cache.command("CONFIG SET maxmemory 256mb")
    stand.cache.command("CONFIG SET maxmemory-policy allkeys-lru")


@asynccontextmanager
async def _gone_cache(stand: Stand) -> AsyncIterator[Strike]:
    async def strike() -> None:
        stand.cache.kill()

    yield strike
    await stand.start_cache()


HEALTHY = "both healthy"
CONDITIONS = (
    Condition(HEALTHY, _healthy),
    Condition("PostgreSQL 200 ms slow", _slow_database),
    Condition("PostgreSQL frozen", _frozen_database),
    Condition("PostgreSQL restarting", _restarting_database),
    Condition("PostgreSQL out of connections", _no_connection_left),
    Condition("Redis 200 ms slow", _slow_cache),
    Condition("Redis frozen", _frozen_cache),
    Condition("Redis full", _full_cache),
    Condition("Redis gone", _gone_cache),
)
