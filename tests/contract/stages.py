"""Where the sentences of the contract are played: over the fakes, in virtual time, and over the real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from loadtests.cluster.postgres import FakePostgres
from loadtests.cluster.processes import freeze
from loadtests.cluster.valkey import FakeValkey, Refusal
from services.cli.valkey import EmbeddedValkey
from services.retrieval.app import Connects
from services.retrieval.database import connect
from tests.retrieval.cacherig import Rig, rigged
from tests.virtual import run

TAKES_S = 0.001  # an exchange with the fake: whoever is cut off in the middle of one is to find a middle
MAX_BYTES = 64 << 20  # as the session's server is started


class CacheStage(Protocol):
    """A Valkey, fake or real."""

    def run(self, main: Callable[[str], Awaitable[None]]) -> None:
        """`main` is given the address of an empty cache."""

    def frozen(self) -> AbstractContextManager[None]:
        """The server stands still inside of it."""

    def full(self) -> AbstractContextManager[None]:
        """The server has no memory left inside of it."""


class FakeCache:
    """The fake, a new one for each play."""

    def run(self, main: Callable[[str], Awaitable[None]]) -> None:
        async def play() -> None:
            self.server = FakeValkey()
            self.server.slow_s = TAKES_S
            await self.server.start()
            try:
                await main(self.server.url)
            finally:
                await self.server.stop()

        run(play())  # as long as it likes: some wait for hours

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.server.frozen = True
        try:
            yield
        finally:
            self.server.frozen = False

    @contextmanager
    def full(self) -> Iterator[None]:
        self.server.refuses = Refusal.OOM
        try:
            yield
        finally:
            self.server.refuses = None


class RealCache:
    """The server of the test session."""

    def __init__(self, server: EmbeddedValkey, url: str) -> None:
        self._server = server
        self._url = url

    def run(self, main: Callable[[str], Awaitable[None]]) -> None:
        async def play() -> None:
            await main(self._url)

        asyncio.run(play())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        freeze(self._server.pid)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    @contextmanager
    def full(self) -> Iterator[None]:
        self._configure("noeviction", max_bytes=1)
        try:
            yield
        finally:
            self._configure("allkeys-lru", max_bytes=MAX_BYTES)

    def _configure(self, policy: str, *, max_bytes: int) -> None:
        for name, value in (("maxmemory-policy", policy), ("maxmemory", max_bytes)):
            assert self._server.command(f"CONFIG SET {name} {value}") == "+OK"


def with_cache(stage: CacheStage, scenario: Callable[[Rig], Awaitable[None]], **breaker: float) -> None:
    """The scenario over retrieval's cache."""

    async def main(url: str) -> None:
        async with rigged(url, **breaker) as rig:
            await scenario(rig)

    stage.run(main)


class DatabaseStage(Protocol):
    """A PostgreSQL with the schema and nothing in it, fake or real."""

    url: str

    @property
    def connect(self) -> Connects: ...

    def run(self, main: Callable[[], Awaitable[None]]) -> None: ...


class FakeDatabase:
    """The fake, one for each test."""

    url = "postgresql://weir_service@postgres/weir"

    def __init__(self) -> None:
        self.server = FakePostgres()

    @property
    def connect(self) -> Connects:
        return self.server.connect

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        run(main)


class RealDatabase:
    """A database of the session's server, for a user with the least power."""

    connect: Connects = staticmethod(connect)

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def play() -> None:
            await main()

        asyncio.run(play())
