"""Where the sentences of the contract are played: over the fakes, in virtual time, and over the real servers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from loadtests.cluster.postgres import FakePostgres
from loadtests.cluster.valkey import FakeValkey
from services.lab.valkey import EmbeddedValkey
from services.retrieval.database import connect
from tests.retrieval.cacherig import Rig, rigged

TAKES_S = 0.001  # an exchange with the fake: those who are cut off in the middle are to find a middle


class CacheStage(Protocol):
    """A Valkey, fake or real."""

    def run(self, main: Callable[[str], Awaitable[None]]) -> None:
        """`main` is given the address of an empty cache."""

    def frozen(self) -> Any:
        """The server stands still inside of it."""


class FakeCacheStage:
    """The fake, one for each play."""

    def run(self, main: Callable[[str], Awaitable[None]]) -> None:
        async def play() -> None:
            self._server = FakeValkey(port=0)
            self._server.slow_s = TAKES_S
            await self._server.start()
            try:
                await main(self._server.url)
            finally:
                await self._server.stop()

        asyncio.run(play())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self._server.frozen = True
        try:
            yield
        finally:
            self._server.frozen = False


class RealCacheStage:
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
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)


def with_cache(stage: CacheStage, scenario: Callable[[Rig], Awaitable[None]], **breaker: float) -> None:
    """The scenario over retrieval's cache."""

    async def main(url: str) -> None:
        async with rigged(url, **breaker) as rig:
            await scenario(rig)

    stage.run(main)
