"""The documents API's statements over a real PostgreSQL: what nobody waits for any more, the server stops as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import numpy as np
import pytest

from loadtests.faults.proxy.fault import FREEZE
from loadtests.faults.proxy.proxy import HOST, FaultProxy
from services.retrieval.app import writers
from services.retrieval.deadline import DeadlineExceeded
from services.retrieval.library import Library
from services.retrieval.minilm import DIMENSIONS
from services.retrieval.preparing import PreparedDocument
from services.retrieval.writing import Quota
from tests.retrieval.corpus import settings_for

MODEL = "a model"
ROOM = Quota(100, 10_000)
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'weir-documents' AND datname = current_database() AND wait_event_type = 'Lock'
"""


class Rig:
    """A library by way of a proxy, and a client of the database that may stand in its way."""

    def __init__(self, library: Library, proxy: FaultProxy, other: asyncpg.Connection) -> None:
        self.library = library
        self.proxy = proxy
        self.other = other

    async def put(self, within_s: float = 60.0, doc_id: str = "a") -> int:
        document = PreparedDocument("A title", "a digest", ["What it says."])
        vectors = np.ones((1, DIMENSIONS), dtype=np.float32)
        return await self.library.put("acme", doc_id, document, vectors, MODEL, self.soon(within_s), ROOM)

    @staticmethod
    def soon(seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds

    async def waits(self) -> bool:
        return bool(await self.other.fetchval(WAITING))

    async def waits_no_more(self) -> bool:
        return not await self.waits()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(60):
            while not await condition():
                await asyncio.sleep(0.02)


@asynccontextmanager
async def rig(url: str) -> AsyncIterator[Rig]:
    port = urlsplit(url).port
    assert port is not None
    async with FaultProxy(HOST, port) as proxy:
        direct = settings_for(url, postgres_connect_timeout_s=30)
        by_way = direct.postgres_url.replace(f":{port}/", f":{proxy.port}/")
        settings = direct.model_copy(update={"postgres_url": by_way})
        library = Library(writers(settings, may_connect=lambda: True))
        other = await asyncpg.connect(url)
        try:
            yield Rig(library, proxy, other)
        finally:
            library.stop()
            other.terminate()


def play(url: str, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with rig(url) as made:
            await made.put()
            await scenario(made)

    asyncio.run(main())


@asynccontextmanager
async def locked_documents(connection: asyncpg.Connection) -> AsyncIterator[None]:
    async with connection.transaction():
        await connection.execute("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_write_whose_client_has_left_is_stopped_long_before_its_time_is_up(postgres_url: str) -> None:
    async def scenario(rig: Rig) -> None:
        async with locked_documents(rig.other):
            writing = asyncio.create_task(rig.put(within_s=3600))
            await rig.until(rig.waits)
            writing.cancel()
            await asyncio.wait({writing})
            await rig.until(rig.waits_no_more)
        assert await rig.put(doc_id="b") > 0

    play(postgres_url, scenario)


def test_a_write_over_a_wire_that_has_died_is_stopped_when_its_time_is_up(postgres_url: str) -> None:
    async def scenario(rig: Rig) -> None:
        async with locked_documents(rig.other):
            writing = asyncio.create_task(rig.put(within_s=3))
            await rig.until(rig.waits)
            await rig.proxy.become(FREEZE)
            with pytest.raises(DeadlineExceeded):
                await writing
            await rig.until(rig.waits_no_more)

    play(postgres_url, scenario)


def test_one_who_came_too_late_has_written_nothing(postgres_url: str) -> None:
    async def scenario(rig: Rig) -> None:
        async with locked_documents(rig.other):
            with pytest.raises(DeadlineExceeded):
                await rig.put(within_s=1, doc_id="late")
        assert await rig.library.held("acme", "late", "m", rig.soon(60)) is None
        assert await rig.library.held("acme", "a", "m", rig.soon(60)) is not None

    play(postgres_url, scenario)
