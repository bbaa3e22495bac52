"""Several routers before the same workers, all real, in virtual time. The store of the exchange is in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import httpx2

from loadtests.world.system import isolated
from services.core.leases.exchange import UsageAnswer, UsageExchange, UsageReport
from services.router import app as router_app
from services.router.config import RouterSettings
from services.router.console import watching
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.leasing import Leasing
from services.router.leases.fault import StoreFault
from services.runtime.log import Log
from services.runtime.serve import Process
from services.worker import app as worker_app
from services.worker.batching import EngineLoop
from services.worker.config import WorkerSettings
from tests.router.rig import client_of, pages_of_the_console, samples_in
from tests.virtual import chance_here, running_here

STEP_MS = 10.0
TOKENS = 8
SERVICE_S = STEP_MS * TOKENS / 1000


class MemoryStore:
    """One pool's exchange."""

    def __init__(self, stores: MemoryStores, pool: str) -> None:
        self._stores = stores
        self.exchange = UsageExchange(f"run of {pool}")

    async def call(self, report: UsageReport) -> UsageAnswer:
        if self._stores.gone:
            raise StoreFault("gone")
        await asyncio.sleep(0.0005)
        return self.exchange.call(asyncio.get_running_loop().time(), report)


class MemoryStores:
    """What all routers exchange through. `gone`: every call fails."""

    def __init__(self) -> None:
        self.gone = False
        self.pools: dict[str, MemoryStore] = {}

    def of(self, pool: str) -> MemoryStore:
        return self.pools.setdefault(pool, MemoryStore(self, pool))

    async def close(self) -> None: ...


@dataclass
class SharedRouter:
    """One router: its process, what it has borrowed, and a client."""

    process: Process
    leasing: Leasing
    dispatcher: Dispatcher
    client: httpx2.AsyncClient
    metrics: httpx2.AsyncClient

    async def ask(self, tenant: str = "a", *, deadline_ms: float = 5000, tokens: int = TOKENS) -> int:
        """One chat completion; returns its status."""
        return (await self.chat(tenant, deadline_ms=deadline_ms, tokens=tokens)).status_code

    async def chat(
        self, tenant: str = "a", *, deadline_ms: float = 5000, tokens: int = TOKENS, stream: bool = False
    ) -> httpx2.Response:
        body = {
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "stream": stream,
            "ignore_eos": True,
        }  # fmt: skip
        headers = {"x-tenant": tenant, "x-slo-deadline-ms": f"{deadline_ms:g}"}
        return await self.client.post("/v1/chat/completions", content=json.dumps(body).encode(), headers=headers)

    async def samples(self, name: str) -> list[tuple[str, float]]:
        return samples_in((await self.metrics.get("/metrics")).text, name)

    @property
    def lent(self) -> list[int]:
        """Slots of each worker that it may use now."""
        return [worker.slots for worker in self.dispatcher.fleet.workers]


@dataclass
class Shared:
    """Routers and workers. `highest` is the number of requests that ran at a worker at once."""

    routers: list[SharedRouter]
    workers: list[EngineLoop]
    store: MemoryStores
    slots: int
    highest: list[int] = field(default_factory=list)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def watch(self) -> None:
        """Look at each worker each five milliseconds: it never runs more than its slots."""
        self.highest = [0] * len(self.workers)
        while True:
            for number, worker in enumerate(self.workers):
                running = worker.running + worker.waiting
                assert running <= self.slots, f"{running} requests at worker {number}, of {self.slots} slots"
                self.highest[number] = max(self.highest[number], running)
            await asyncio.sleep(0.005)

    def charged(self, tenant: str) -> float:
        """Work that the tenant was charged for at all routers, in token-equivalents."""
        known = [router.dispatcher.scheduler.drr.tenants.get(tenant) for router in self.routers]
        return sum(account.charged for account in known if account is not None)

    async def shares(self, *tenants: str, over_s: float) -> list[float]:
        """The tenants' parts of what they are charged for together, within the next seconds."""
        before = [self.charged(tenant) for tenant in tenants]
        await asyncio.sleep(over_s)
        work = [self.charged(tenant) - at for tenant, at in zip(tenants, before, strict=True)]
        return [each / sum(work) for each in work]

    async def resting(self) -> None:
        """Wait until nothing runs anywhere."""
        async with asyncio.timeout(30):
            while any(worker.running or worker.waiting for worker in self.workers) or any(
                router.dispatcher.cap.inflight or router.dispatcher.waiting for router in self.routers
            ):
                await asyncio.sleep(0.01)


@cache
def _given(kind: type[Any]) -> type[Any]:
    return isolated(kind)


@asynccontextmanager
async def sharing(
    routers: int = 2, workers: int = 2, slots: int = 2, *, other: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Shared]:
    """So many routers before so many workers. `settings` are the routers', `other` the workers'."""
    async with AsyncExitStack() as stack:
        loops: list[EngineLoop] = []
        urls: list[str] = []
        for number in range(workers):
            process = worker_app.build(
                _given(WorkerSettings)(
                    worker_port=0, metrics_port=0, worker_name=f"w{number}", max_batch_size=slots, log_level="ERROR",
                    sim_step_ms=STEP_MS, sim_step_per_sequence_ms=0.0, sim_prefill_ms_per_token=0.0, **(other or {}),
                ),
                rng=chance_here(),
            )  # fmt: skip
            await stack.enter_async_context(running_here(process))
            stack.callback(process.log.close)
            assert isinstance(process.inside, EngineLoop)
            loops.append(process.inside)
            urls.append(f"http://127.0.0.1:{process.bound_port}")
        store, shared = MemoryStores(), Shared([], loops, MemoryStores(), slots, stack=stack)
        shared.store = store
        for number in range(routers):
            await add_router(shared, number, urls, **settings)
        watching_slots = asyncio.get_running_loop().create_task(shared.watch())
        try:
            yield shared
            await shared.resting()
            assert not watching_slots.done(), watching_slots.exception()
        finally:
            watching_slots.cancel()


async def add_router(
    shared: Shared, number: int, urls: list[str], *, log: Log | None = None, **settings: Any
) -> SharedRouter:
    made: dict[str, Any] = {}

    def keeping(name: str) -> Any:
        make = vars(router_app)[name]

        def kept(*parts: Any, **named: Any) -> Any:
            made[name] = make(*parts, **named)
            return made[name]

        return kept

    chosen = {
        "workers": ",".join(urls), "retrieval_url": "http://127.0.0.1:1", "log_level": "ERROR",
        "exchange_url": "redis://in-memory", "router_name": f"r{number}", "drain_timeout_s": 0.5, **settings,
    }  # fmt: skip
    with (
        mock.patch.object(router_app, "Dispatcher", keeping("Dispatcher")),
        mock.patch.object(router_app, "Leasing", keeping("Leasing")),
        mock.patch.object(watching, "Files", pages_of_the_console),
    ):
        given = _given(RouterSettings)(router_port=0, metrics_port=0, **chosen)
        process = router_app.build(given, rng=chance_here(), stores=shared.store, log=log)
    stack = shared.stack
    await stack.enter_async_context(running_here(process))
    stack.callback(process.log.close)
    client = await stack.enter_async_context(client_of(process.bound_port))
    metrics = await stack.enter_async_context(client_of(process.bound_metrics_port))
    router = SharedRouter(process, made["Leasing"], made["Dispatcher"], client, metrics)
    shared.routers.append(router)
    return router


async def flood(router: SharedRouter, tenant: str, *, clients: int) -> None:
    """So many clients, each of which asks again at an answer, or soon after a refusal. For ever."""

    async def client() -> None:
        while True:
            if await router.ask(tenant, deadline_ms=1000) != 200:
                await asyncio.sleep(0.3)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


@asynccontextmanager
async def floods(*flooding: tuple[SharedRouter, str, int]) -> AsyncIterator[None]:
    """(router, tenant, clients) each, until the end."""
    tasks = [
        asyncio.get_running_loop().create_task(flood(router, tenant, clients=clients))
        for router, tenant, clients in flooding
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
