"""Routers before one OpenAI-compatible server whose slots a desk lends: all real, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from loadtests.faults.evil.talk import Talk
from loadtests.faults.evil.worker import EvilWorker, running
from loadtests.world.system import isolated
from services.desk.app import build
from services.desk.book import LEARN_S
from services.desk.config import DeskSettings
from services.desk.lending import DeskLending
from services.runtime.log import Log
from tests.router.rig import client_of, samples_in
from tests.router.sharedrig import MemoryStores, Shared, SharedRouter, add_router
from tests.virtual import chance_here, running_here

SERVICE_S = 0.1
_Settings = isolated(DeskSettings)


class Server:
    """An OpenAI-compatible server that takes whatever comes, and counts what runs at once."""

    def __init__(self, slots: int, model: str = "m") -> None:
        self.slots = slots
        self.running = self.highest = self.begun = 0
        self.service_s = SERVICE_S
        self.crowding_s = 0.0
        """How much longer it takes for each request that runs."""
        self.worker = EvilWorker("openai", lambda talk: self.serve, model=model)

    async def serve(self, talk: Talk) -> None:
        self.running += 1
        self.begun += 1
        self.highest = max(self.highest, self.running)
        try:
            answer = await self.answer(talk)
        finally:
            self.running -= 1
        await talk.send(answer)

    async def answer(self, talk: Talk) -> bytes:
        await asyncio.sleep(self.service_s + self.crowding_s * self.running)
        return talk.answered()


class Desked:
    """Routers, the server, and the desk, which can be stopped and started, and `learns` how many slots there are."""

    def __init__(
        self, shared: Shared, server: Server, hold_s: float, *, learns: bool = False, log: Log | None = None
    ) -> None:
        self.shared = shared
        self.server = server
        self.lending: DeskLending
        self._hold_s = hold_s
        self._log = log
        self._slots = "auto" if learns else str(server.slots)
        self._port = 0
        self._metrics_port = 0
        self._desk = AsyncExitStack()

    @property
    def routers(self) -> list[SharedRouter]:
        return self.shared.routers

    @property
    def url(self) -> str:
        """Of the server's book."""
        return f"http://127.0.0.1:{self._port}/server-a"

    async def start(self) -> None:
        settings = _Settings(
            desk_port=self._port, metrics_port=self._metrics_port, desk_servers=f"server-a={self._slots}",
            desk_max_slots=self.server.slots, desk_hold_s=self._hold_s, log_level="ERROR", drain_timeout_s=0.5,
        )  # fmt: skip
        process = build(settings, rng=chance_here(), log=self._log)
        self._desk = AsyncExitStack()
        await self._desk.enter_async_context(running_here(process))
        self._desk.callback(process.log.close)
        self._port, self._metrics_port = process.bound_port, process.bound_metrics_port
        assert isinstance(process.inside, dict)
        self.lending = process.inside["server-a"]

    async def stop(self) -> None:
        await self._desk.aclose()

    async def samples(self, name: str) -> list[tuple[str, float]]:
        async with client_of(self._metrics_port) as client:
            return samples_in((await client.get("/metrics")).text, name)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with client_of(self._port) as client:
            yield client


@asynccontextmanager
async def desked(
    routers: int = 2,
    slots: int = 2,
    *,
    hold_s: float = 20.0,
    learns: bool = False,
    log: Log | None = None,
    **settings: Any,
) -> AsyncIterator[Desked]:
    """So many routers before a server with so many slots, or for which the desk `learns` at most so many. It has begun
    to lend. `log`: of all of them.
    """
    async with AsyncExitStack() as stack:
        server = Server(slots)
        await stack.enter_async_context(running(server.worker))
        shared = Shared([], [], MemoryStores(), slots, stack=stack)
        made = Desked(shared, server, hold_s, learns=learns, log=log)
        await made.start()
        stack.push_async_callback(made.stop)
        folder = stack.enter_context(TemporaryDirectory())
        file = Path(folder) / "workers.yaml"
        entry = {"name": "server-a", "kind": "openai", "url": server.worker.url, "desk": made.url, "metrics": False}
        file.write_text(json.dumps({"workers": [entry]}), encoding="utf-8")
        for number in range(routers):
            await add_router(shared, number, [], workers_file=file, log=log, **settings)
        await asyncio.sleep(LEARN_S)
        yield made
        await shared.resting()
        assert server.highest <= slots, f"{server.highest} requests ran at once, on {slots} slots"
