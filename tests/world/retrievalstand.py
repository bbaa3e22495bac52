"""Retrieval in virtual time over its two fake stores, asked over HTTP from another host, and looked at afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from loadtests.cluster.loop import SimLoop, Simulation
from loadtests.cluster.node import Node
from loadtests.cluster.stores import Stores
from services.retrieval.config import RetrievalSettings

Answer = dict[str, Any]
KNOWN = "What holds a river at its level?"
ADDRESS, PORT, METRICS_PORT = "10.0.0.3", 8001, 9001
WITHIN_S = 120.0
CORPUS = {
    "river.md": ["A weir holds a river at its level.", "Sluice gates open when the water rises."],
    "bread.md": ["Knead the dough, let it rest for an hour, and bake it in a hot oven."],
}
OURS = ("Store.", "Cache.", "Pool.", "QueuedEmbedder.", "Session")


class Stand:
    """A running service, its stores, and ways to see that nothing was left behind."""

    def __init__(self, simulation: Simulation, stores: Stores, node: Node, settings: RetrievalSettings) -> None:
        self.simulation = simulation
        self.stores = stores
        self.node = node
        self._settings = settings
        self._numbers = itertools.count(1)
        self._tasks_before: Counter[str] = Counter()

    async def ask(self, query: str, **fields: object) -> Answer:
        """An answer of status 200, whatever is broken: that much is promised always."""
        body = {"query": query, "tenant": "demo", "top_k": 2, "budget_ms": 60_000, **fields}
        status, reply = await self._http("POST", "/retrieve", body)
        assert status == 200, reply
        return reply

    async def ask_anew(self, count: int) -> list[Answer]:
        """Answers to questions that nobody has asked before, all at once."""
        questions = [f"What is question {next(self._numbers)} about?" for _ in range(count)]
        return list(await asyncio.gather(*map(self.ask, questions)))

    async def source(self, query: str, **fields: object) -> str:
        return str((await self.ask(query, **fields))["source"])

    async def documents(self) -> tuple[int, str | None]:
        """Status of a list of documents, and why there is none."""
        status, reply = await self._http("GET", "/documents", headers="x-tenant: demo\r\n")
        return status, reply.get("error", {}).get("details", {}).get("reason")

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition; give up after a while."""
        async with asyncio.timeout(WITHIN_S):
            while not await condition():
                await asyncio.sleep(0.02)

    async def until_source(self, source: str, query: str, **fields: object) -> None:
        async def as_wanted() -> bool:
            return await self.source(query, **fields) == source

        await self.until(as_wanted)

    async def until_missing(self, *dependencies: str) -> None:
        """Until the service is ready and says that just these are missing."""

        async def as_wanted() -> bool:
            status, reply = await self._http("GET", "/health/ready")
            return (status, reply["degraded"]) == (200, list(dependencies))

        await self.until(as_wanted)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all its samples with these labels; not over the wire: a scrape tells of this very process."""
        assert self.node.process is not None
        registry = self.node.process.registry
        assert registry is not None
        samples = (sample for family in registry.collect() for sample in family.samples)
        return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

    async def know(self) -> None:
        """Have `KNOWN` in the cache, and remember what runs while all is well."""
        await self.until_missing()
        await self.until_source("cache", KNOWN)
        self._tasks_before = self._tasks()

    async def recovers_and_leaks_nothing(self) -> None:
        """Search and cache are used again by themselves; connections and tasks are what they were."""
        await self.until_missing()

        async def searches() -> bool:
            return (await self.ask_anew(1))[0]["source"] == "db"

        await self.until(searches)
        await self.until_source("cache", KNOWN)
        await self.until(self._connections_are_in_order)

        async def tasks_are_in_order() -> bool:
            return self._tasks() <= self._tasks_before

        await self.until(tasks_are_in_order)

    async def _connections_are_in_order(self) -> bool:
        size = self._settings.postgres_pool_size
        searching = [each for each in self.stores.database.connections if each.application == "weir-retrieval"]
        return (
            await self.metric("weir_postgres_connections") == size == len(searching)
            and await self.metric("weir_postgres_connections_in_use") == 0
            and len(self.stores.cache.connections) <= self._settings.redis_pool_size
        )

    def _tasks(self) -> Counter[str]:
        names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(self.node.loop))
        return Counter(name for name in names if name.startswith(OURS))

    async def _http(self, method: str, path: str, body: object = None, *, headers: str = "") -> tuple[int, Answer]:
        data = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(ADDRESS, PORT)
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{headers}"
        try:
            writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            async with asyncio.timeout(WITHIN_S):
                answer = await reader.read()
        finally:
            writer.close()
        first, _, rest = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), json.loads(rest)


def stand_up(scenario: Callable[[Stand], Awaitable[None]], *, seed: int = 1, **changed: object) -> str:
    """Play it, with `KNOWN` cached before and everything checked after. The digest of all that has happened."""
    simulation = Simulation(seed)
    lines: list[bytes] = []
    errors: list[str] = []
    stores = Stores(simulation)
    settings = RetrievalSettings(
        **{  # type: ignore[arg-type]
            **stores.urls, "host": "0.0.0.0", "metrics_host": "0.0.0.0", "inner_network": True, "allowed_hosts": "*",
            "retrieval_port": PORT, "metrics_port": METRICS_PORT, "retrieval_budget_ms": 400.0, **changed,
        }
    )  # fmt: skip
    node = Node(
        simulation, "retrieval", ADDRESS, partial(stores.retrieval, settings), seed=str(seed),
        on_line=lambda name, start, line: lines.append(line), on_error=lambda name, what: errors.append(what),
    )  # fmt: skip

    async def main() -> None:
        stores.fill("demo", CORPUS)
        stores.start_cache()
        node.start()
        await asyncio.sleep(1.0)
        stand = Stand(simulation, stores, node, settings)
        await stand.know()
        await scenario(stand)
        await stand.recovers_and_leaks_nothing()
        assert await node.stop(WITHIN_S) == []

    lab = SimLoop(simulation, "lab", "10.0.0.100")
    try:
        lab.run_until_complete(main())
    finally:
        simulation.close()
    assert not errors, errors
    return simulation.digest
