"""The retrieval service over a real PostgreSQL and a real Valkey, each behind a proxy that can be told to fail."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx2
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from loadtests.faults.proxy.proxy import HOST, FaultProxy
from services.retrieval.app import build
from services.retrieval.config import RetrievalSettings
from services.runtime.serve import running

Answer = dict[str, Any]
KNOWN = "What holds a river at its level?"
SEARCHING, OURS = "weir-retrieval", "weir-%"  # how the service's connections name themselves to the database


class FaultStand:
    """A running service, its two proxies, and ways to see that nothing was left behind."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        metrics_url: str,
        settings: RetrievalSettings,
        database: FaultProxy,
        cache: FaultProxy,
    ) -> None:
        self.database = database
        self.cache = cache
        self._http = http
        self._metrics_url = metrics_url
        self._settings = settings
        self._numbers = itertools.count(1)
        self._tasks_before: Counter[str] = Counter()

    async def ask(self, query: str, **fields: object) -> Answer:
        """An answer of status 200, whatever is broken: that much is promised always."""
        body = {"query": query, "tenant": "demo", "top_k": 2, "budget_ms": 60_000, **fields}
        answer = await self._http.post("/retrieve", json=body)
        assert answer.status_code == 200, answer.text
        reply: Answer = answer.json()
        return reply

    async def ask_anew(self, count: int) -> list[Answer]:
        """Answers to questions that nobody has asked before, all at once."""
        questions = [f"What is question {next(self._numbers)} about?" for _ in range(count)]
        return list(await asyncio.gather(*map(self.ask, questions)))

    async def kept(self, query: str, **fields: object) -> Answer:
        """The first answer that has something. On a machine that stalls, the cache may be late as well, and says so."""
        async with asyncio.timeout(60):
            while (answer := await self.ask(query, **fields))["source"] == "none":
                assert answer["reason"]
        return answer

    async def source(self, query: str, **fields: object) -> str:
        return str((await self.ask(query, **fields))["source"])

    async def documents(self) -> tuple[int, str | None]:
        """Status of a list of documents, and why there is none."""
        answer = await self._http.get("/documents", headers={"x-tenant": "demo"})
        return answer.status_code, answer.json().get("error", {}).get("details", {}).get("reason")

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition rather than for a time; give up, loudly, after a while."""
        async with asyncio.timeout(60):
            while not await condition():
                await asyncio.sleep(0.02)

    async def until_source(self, source: str, query: str, **fields: object) -> None:
        async def as_wanted() -> bool:
            return await self.source(query, **fields) == source

        await self.until(as_wanted)

    async def until_missing(self, *dependencies: str) -> None:
        """Until the service is ready and says that just these are missing."""

        async def as_wanted() -> bool:
            answer = await self._http.get("/health/ready")
            return (answer.status_code, answer.json()["degraded"]) == (200, list(dependencies))

        await self.until(as_wanted)

    async def know(self) -> None:
        """Have `KNOWN` in the cache, and remember what runs while all is well."""
        await self.until_source("cache", KNOWN)
        self._tasks_before = _tasks()

    async def recovers_and_leaks_nothing(self) -> None:
        """Search and cache are used again by themselves; connections and tasks are what they were."""
        await self.until_missing()

        async def searches() -> bool:
            return (await self.ask_anew(1))[0]["source"] == "db"

        await self.until(searches)
        await self.until_source("cache", KNOWN)
        await self.until(self._connections_are_in_order)

        async def tasks_are_in_order() -> bool:
            return _tasks() <= self._tasks_before

        await self.until(tasks_are_in_order)

    async def _connections_are_in_order(self) -> bool:
        size = self._settings.postgres_pool_size
        return (
            await self.metric("weir_postgres_connections") == size
            and await self.metric("weir_postgres_connections_in_use") == 0
            and await self._in_postgres(SEARCHING) == size
            and await self._in_redis() <= self._settings.redis_pool_size
        )

    async def has_left_postgres(self) -> bool:
        """The server has noticed that the service has no connection any more."""
        return await self._in_postgres(OURS) == 0

    async def _in_postgres(self, named: str) -> int:
        """Connections with such a name, as the server counts them."""
        direct = await asyncpg.connect(self._settings.postgres_url)
        try:
            named_so = "application_name LIKE $1 AND datname = current_database()"
            return int(await direct.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {named_so}", named))
        finally:
            await direct.close()

    async def _in_redis(self) -> int:
        async with Redis.from_url(self._settings.redis_url) as direct:
            return len(await direct.client_list()) - 1

    async def metric(self, name: str, **labels: str) -> float:
        text = (await self._http.get(self._metrics_url)).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(
            sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def standing(settings: RetrievalSettings, model: Path) -> AsyncIterator[FaultStand]:
    """All of it, ready and well."""
    database, cache = _proxy_to(settings.postgres_url), _proxy_to(settings.redis_url)
    async with database, cache:
        through = settings.model_copy(
            update={
                "postgres_url": _by_way_of(database, settings.postgres_url),
                "redis_url": _by_way_of(cache, settings.redis_url),
            }
        )
        async with running(build(through, model)) as process:
            base = f"http://{HOST}:{process.bound_port}"
            metrics = f"http://{HOST}:{process.bound_metrics_port}/metrics"
            async with httpx2.AsyncClient(base_url=base, timeout=60) as http:
                stand = FaultStand(http, metrics, settings, database, cache)
                await stand.until_missing()
                yield stand


def stand_up(settings: RetrievalSettings, model: Path, scenario: Callable[[FaultStand], Awaitable[None]]) -> None:
    """Play a scenario on a loop of its own, with `KNOWN` cached before and everything checked after."""

    async def main() -> None:
        async with standing(settings, model) as stand:
            await stand.know()
            await scenario(stand)
            await stand.recovers_and_leaks_nothing()

    asyncio.run(main())


def _proxy_to(url: str) -> FaultProxy:
    port = urlsplit(url).port
    assert port is not None
    return FaultProxy(HOST, port)


def _by_way_of(proxy: FaultProxy, url: str) -> str:
    return url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")


def _tasks() -> Counter[str]:
    """What runs on this loop, by name; connections of clients and of the proxies come and go."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return Counter(
        name for name in names if name.startswith(("Store.", "Cache.", "Pool.", "QueuedEmbedder.", "Session"))
    )
