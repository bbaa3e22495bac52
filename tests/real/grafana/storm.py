"""A stormy minute for the dashboards: two tenants, too much load, and every fault that a panel speaks of.

Each step lasts until Prometheus has seen it, so a panel that stays empty afterwards is at fault itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import httpx2

from loadtests.cluster.processes import frozen
from services.governor.client import SendFailed
from tests.real.grafana.prometheus import SCRAPES_EVERY_S, Prometheus
from tests.real.stack.stand import Part, Stand, chat, soon
from tests.real.stack.test_governor import SHORT, client_of, sent

HEAVY = 40  # callers of the tenant that asks for too much: five times the slots there are
WITHIN_S = 60.0
AGAIN = "What is paid for a barge at the lock of Greenfield?"


class Storm:
    """The load, and the steps in it."""

    def __init__(self, stand: Stand, governor: Part, prometheus: Prometheus) -> None:
        self.stand = stand
        self.governor = governor
        self.prometheus = prometheus
        self.over = asyncio.Event()
        self.heavy = asyncio.Event()

    async def seen(self, expression: str, within_s: float = WITHIN_S) -> None:
        """Wait until Prometheus has something of which this is true."""
        async with asyncio.timeout(within_s):
            while not self.prometheus.holds(expression):
                await asyncio.sleep(SCRAPES_EVERY_S / 2)

    async def play(self, shown: Callable[[], bool]) -> None:
        """All of it; afterwards the load goes on until everything is shown, or for a while."""
        async with self.load():
            await self.seen('count(up{job=~"router|retrieval|worker|governor"} == 1) == 5')
            await self.seen('sum by (tenant) (weir_requests_total{job="router", outcome="served"}) > 10')
            await self.a_crowd_for_the_embedder()
            await self.stores_that_fail()
            self.heavy.set()  # and from here on retrieval is left out at times: that is degradation
            await self.seen('weir_queue_depth{job="router", tenant="heavy"} > 4')
            await self.seen('weir_degradation_level{job="router"} > 0')
            await self.clients_that_leave()
            await self.workers_that_fail()
            await self.a_mechanism_that_is_off()
            with contextlib.suppress(AssertionError):  # what has stayed empty is named by a test of its own
                await soon(shown, "every panel and every rule has shown something", WITHIN_S)

    # ---- the load

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        async with self.stand.client() as client, asyncio.TaskGroup() as group:
            for number in range(HEAVY):
                group.create_task(self.ask_heavily(client, number))
            for tenant in ("light", "light", "calm"):
                group.create_task(self.ask_lightly(client, tenant))
            for number in range(3):
                group.create_task(self.ask_for_passages(client, number))
            for number in range(3):
                group.create_task(self.send_jobs(number))
            try:
                yield
            finally:
                self.heavy.set()
                self.over.set()

    async def ask_heavily(self, client: httpx2.AsyncClient, number: int) -> None:
        await self.heavy.wait()
        headers = {"x-tenant": "heavy", "x-weir-deadline-ms": "1500" if number % 2 else "4000"}
        while not self.over.is_set():
            with contextlib.suppress(httpx2.TransportError):
                told = await chat(client, 120, stream=number % 4 == 0, headers=headers)
                if told.status != 200:
                    await asyncio.sleep(0.05)

    async def ask_lightly(self, client: httpx2.AsyncClient, tenant: str) -> None:
        while not self.over.is_set():
            with contextlib.suppress(httpx2.TransportError):
                await chat(client, 20, stream=True, headers={"x-tenant": tenant})
                await asyncio.sleep(0.05)

    async def ask_for_passages(self, client: httpx2.AsyncClient, number: int) -> None:
        """A question that is new, one that is asked again, and one that wants nothing old, in turns."""
        for turn in itertools.count(number):
            if self.over.is_set():
                return
            fields = ({"query": self.stand.question()}, {"query": AGAIN}, {"query": AGAIN, "cache_ttl_s": 0})[turn % 3]
            with contextlib.suppress(httpx2.TransportError):
                await client.post("/ask", json={"max_tokens": 20, "tenant": "demo", **fields})
            await asyncio.sleep(0.05)

    async def send_jobs(self, number: int) -> None:
        """Three clients for one slot; one of them sends what the router finds wrong, now and then."""
        while not self.over.is_set():
            with contextlib.suppress(SendFailed):  # the router had nobody for it
                async with client_of(self.governor, f"J_{number}") as (client, _):
                    await sent(client, SHORT if number else {"prompt": "x", "temperature": 9})
            await asyncio.sleep(0.1)

    # ---- the faults

    async def a_crowd_for_the_embedder(self) -> None:
        async with self.stand.client() as client:
            while not self.prometheus.holds("weir_embed_queue_depth > 0"):
                texts = {"input": [self.stand.question() for _ in range(16)]}
                with contextlib.suppress(httpx2.TransportError):
                    await asyncio.gather(*(client.post("/v1/embeddings", json=texts) for _ in range(4)))

    async def clients_that_leave(self) -> None:
        async with self.stand.client() as client:
            while not self.prometheus.holds('weir_wasted_seconds_total{job="worker", reason="client_gone"} > 0'):
                with contextlib.suppress(httpx2.TransportError):
                    await asyncio.gather(*(chat(client, 400, stream=True, leave=True) for _ in range(4)))

    async def workers_that_fail(self) -> None:
        victim, other = self.stand.workers
        while not self.prometheus.holds('sum (weir_retries_total{job="router"}) > 0'):
            await soon(lambda: self.held(victim) >= 2, "the victim has something to lose")
            victim.kill()
            await self.seen('up{instance="worker-0"} == 0')
            victim.spawn()
            await soon(self.stand.whole, "the worker is back")
        while not self.prometheus.holds("job:weir_deadlines_missed:ratio_rate5m > 0"):
            await soon(lambda: self.held(other) >= 2, "the other worker has something to lose")
            with other.frozen(), contextlib.suppress(TimeoutError):  # the longest deadline is 4 s
                await self.seen("job:weir_deadlines_missed:ratio_rate5m > 0", within_s=8)
            await soon(self.stand.whole, "the worker has thawed")

    def held(self, worker: Part) -> float:
        """What the router holds at a worker."""
        return self.stand.router.metrics("weir_worker_inflight", "worker").get(worker.name, 0)

    async def stores_that_fail(self) -> None:
        with frozen(self.stand.redis.pid):
            await self.seen('weir_dependency_up{dependency="redis"} == 0')
        await self.seen('weir_dependency_up{dependency="redis"} == 1')
        await self.seen('increase(weir_cache_total{cache="exact", result="hit"}[5s]) > 0')
        with frozen(self.stand.postgres.pid):
            await self.seen("weir_postgres_connections_in_use > 0")
        self.stand.postgres.kill()
        await self.seen('weir_retrieval_seconds_count{job="router", source="none"} > 0')
        await self.seen('weir_retrieval_seconds_count{job="router", source="stale"} > 0')
        self.stand.postgres.start()
        await self.seen('weir_dependency_up{dependency="postgres"} == 1')

    async def a_mechanism_that_is_off(self) -> None:
        for on in (False, True):
            url = f"http://127.0.0.1:{self.stand.router.metrics_port}/admin/policy"
            reply = self.stand.http.post(url, json={"fairness": on})
            assert reply.status_code == 200, reply.text
            await self.seen(f'weir_mechanism_enabled{{mechanism="fairness"}} == {int(on)}')
