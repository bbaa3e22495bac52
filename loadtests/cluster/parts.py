"""A part of the stack that can be killed and restarted; `processes.frozen` freezes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from loadtests.cluster.processes import StandError
from loadtests.cluster.stand import Server, ready
from services.cli.errors import LabError
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey


class Part(Protocol):
    """`start` returns when the part is ready. `pid`: its first process, the parent of the others."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    async def start(self) -> None: ...


@dataclass
class Service:
    server: Server

    @property
    def name(self) -> str:
        return self.server.process.name

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def kill(self) -> None:
        self.server.process.kill()

    async def start(self) -> None:
        self.server.process.start()
        await ready(self.server)


@dataclass
class Store:
    """PostgreSQL or Valkey. Slow work runs in a thread; processes are started from the main thread."""

    name: str
    server: EmbeddedPostgres | EmbeddedValkey

    @property
    def pid(self) -> int:
        return self.server.pid

    def kill(self) -> None:
        self.server.child.kill()

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self.server.prepare)
            self.server.spawn()
            while not await asyncio.to_thread(self.server.wait_ready):
                self.server.spawn()
        except LabError as error:
            raise StandError(str(error)) from error
