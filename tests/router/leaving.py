"""A router that is watched for what it keeps, while its clients leave at a chosen stage of their requests."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import types
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from loadtests.cluster.loop import SimLoop
from loadtests.cluster.network import LATENCY_S
from services.core.outcome import Outcome
from services.core.request import Stage as Availability
from services.router import app
from services.router.deadlinetimer import DeadlineTimer
from services.router.deciding.dispatcher import Dispatcher
from services.router.request import InferenceRequest
from services.router.telemetry.journal import Journal
from services.router.workers import health
from services.router.workers.cancels import Cancels
from services.runtime.keepalive import Pool
from services.runtime.log import Log
from tests.router.leaver import Client, Way, answered_whole, asking
from tests.router.rig import Stand, standing
from tests.router.stepping import AT_A_WORKER, NOT_YET_ASKED, TOKENS_BEFORE, Stage, StalledRetrieval, SteppingWorker
from tests.runtime.rig import until

LIMITS = (
    "services.router.workers.prober.PROBE_TIMEOUT_S",
    "services.router.workers.cancels.WITHIN_S",
    "services.router.rag.retrieval.LOOK_WITHIN_S",
    "services.runtime.drain.LAST_WORDS_S",
)
"""What the router gives others a second for: a clock that leaps would pass it."""
LOOP_TURNS = 12
"""Turns of the event loop in which clients leave, and in which a loop at rest lets go of what was closed."""
STEP_S = LATENCY_S / 4
"""Between two of them: together they take as long as an event from the worker over the router to its client."""


class WatchedDispatcher(Dispatcher):
    """The real one; it remembers when and how each request ended, and what its tenant was charged."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.ended_at: dict[str, float] = {}
        self.outcomes: dict[str, str] = {}
        self.costs: dict[str, float] = {}

    def release(self, now: float, turn: InferenceRequest, outcome: Outcome, *used: Any, **named: Any) -> None:
        ran = turn.stage is Availability.RUNNING
        super().release(now, turn, outcome, *used, **named)
        id = str(turn.id)
        self.ended_at[id] = asyncio.get_running_loop().time()
        self.outcomes[id] = f"{self.outcomes.get(id, '')} {outcome}".strip()
        if ran:
            cost = self.scheduler.settings.weights.cost(*(used[:2] or (0.0, 0.0)))
            self.costs[turn.tenant] = self.costs.get(turn.tenant, 0.0) + cost


class ForgetfulJournal(Journal):
    """The real one; it remembers nobody who has ended, so whoever is found then is held by somebody else."""

    __slots__ = ()

    def ended(self, *what: Any) -> None:
        super().ended(*what)
        for line in (*self._rings.values(), self._placed, self._refused):
            line.clear()


@dataclass
class Scene:
    """A router, what its clients do to it, and the means to see what is left of them."""

    stage: Stage
    stream: bool
    stand: Stand
    dispatcher: WatchedDispatcher
    cancels: Cancels
    log: io.BytesIO
    go: asyncio.Event
    earlier: list[object]
    """Requests that other tests of this process still hold. Held here too, so that no identity is used twice."""
    clients: list[Client] = field(default_factory=list)

    @property
    def workers(self) -> list[SteppingWorker]:
        return [worker for worker in self.stand.workers if isinstance(worker, SteppingWorker)]

    @property
    def retrieval(self) -> StalledRetrieval:
        assert isinstance(self.stand.retrieval, StalledRetrieval)
        return self.stand.retrieval

    def there(self) -> int:
        """Requests that a worker has brought as far as the stage."""
        return sum(worker.there for worker in self.workers)

    # ---- coming

    async def client(self, id: str, way: Way = Way.FIN) -> Client:
        """Connected."""
        made = Client(id, way)
        self.clients.append(made)
        await made.connect(self.stand.router.bound_port)
        return made

    async def arrive(self, ids: Iterable[str], ways: tuple[Way, ...] = (Way.FIN,), **headers: str) -> list[Client]:
        """So many clients, each at the stage."""
        there, asked = self.there(), len(self.stand.retrieval.asked) if self.stand.retrieval else 0
        clients = [await self.client(id, ways[number % len(ways)]) for number, id in enumerate(ids)]
        for number, client in enumerate(clients):
            await client.send(self._request(client, tenant=("demo", "other")[number % 2], **headers))
        await self._until_there(clients, there, asked)
        return clients

    def _request(self, client: Client, **headers: str) -> bytes:
        whole = asking(client.id, ask=self.stage is Stage.RETRIEVAL, stream=self.stream, **headers)
        head, _, body = whole.partition(b"\r\n\r\n")
        parts = {Stage.CONNECT: b"", Stage.HEADERS: head[: len(head) // 2], Stage.BODY: whole[: -len(body) // 2]}
        return parts.get(self.stage, whole)

    async def _until_there(self, clients: list[Client], there: int, asked: int) -> None:
        count = len(clients)
        if self.stage in AT_A_WORKER:
            await until(lambda: self.there() == there + count, "every request at its worker")
        elif self.stage is Stage.QUEUED:
            await until(lambda: len(self.dispatcher.waiting) == count, "every request in line")
        elif self.stage is Stage.RETRIEVAL:
            await until(lambda: len(self.retrieval.asked) == asked + count, "every request at retrieval")
        elif self.stage is Stage.AFTER:
            await asyncio.gather(*(client.read_until(answered_whole) for client in clients))
        if self.stream and self.stage in TOKENS_BEFORE:
            tokens = TOKENS_BEFORE[self.stage]
            await asyncio.gather(*(c.read_until(lambda seen: seen.count(b"word ") == tokens) for c in clients))

    async def hold_the_slot(self) -> Client:
        """A request in the only place, so that whoever comes has to wait."""
        before = self.there()
        holder = await self.client(f"holder-{before}")
        await holder.send(asking(holder.id))
        await until(lambda: self.there() == before + 1, "the holder at its worker")
        return holder

    # ---- going

    async def all_leave(self, clients: list[Client]) -> None:
        """All in one turn of the loop; where the last event of the answers comes just then, while it travels."""
        if self.stage is Stage.LAST_TOKEN:
            early = len(clients) // 3
            await leave_in_turns(clients[:early])
            self.go.set()
            await leave_in_turns(clients[early:])
            return
        for client in clients:
            client.leave()
        await asyncio.sleep(0)

    async def all_gone(self, clients: list[Client]) -> None:
        """Every request has ended; whoever has closed its half only has seen the end of the connection."""
        if self.stage not in NOT_YET_ASKED:
            await until(lambda: all(c.id in self.dispatcher.ended_at for c in clients), "every request ended")
        await asyncio.gather(*(client.read_to_end() for client in clients if client.way is Way.HALF))
        for client in clients:
            client.close()
            self.clients.remove(client)

    async def log_lines(self, count: int) -> list[dict[str, Any]]:
        """The lines of requests, once there are so many."""

        def lines() -> list[dict[str, Any]]:
            read = [json.loads(line) for line in self.log.getvalue().splitlines()]
            return [line for line in read if line["event"] == "request"]

        await until(lambda: len(lines()) >= count, f"{count} lines in the log")
        return lines()

    # ---- what is left

    async def at_rest(self, before: Left | None = None) -> Left:
        """What is there when nobody asks and nothing is held; with `before`, once no more is open than there was."""
        await until(lambda: not self.still_held(), f"nothing held: {self.still_held()}")
        await until(lambda: not any(worker.running for worker in self.workers), "every worker idle")
        await until(lambda: not self.cancels._queues, "every worker told")
        if before is not None:
            await until(lambda: self._open() <= before.open, "every connection closed, and every task ended")
        for worker in self.workers:
            worker.asked.clear()
        if self.stand.retrieval is not None:
            self.stand.retrieval.asked.clear()
        self._forget_spent_turns()
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)  # the event loop lets go of what was closed
        return Left(self._open(), self.earlier)

    def _open(self) -> tuple[int, int]:
        """Ends of connections, and tasks; none are idle. Probes come and go: wait for a number, do not compare."""
        for worker in self.dispatcher.fleet.workers:
            worker.upstream.close()
        return len(here().network.connections), len(asyncio.all_tasks())

    def _forget_spent_turns(self) -> None:
        """The core's heaps hold some that have ended, at most 64 or so each, until it looks at them again."""
        scheduler = self.dispatcher.scheduler
        scheduler.wakes_at()
        for of_pool in scheduler.pools.values():
            of_pool.estimator._ends.clear()

    def still_held(self) -> list[str]:
        """Whatever a router at rest should not hold; empty when nothing is."""
        dispatcher = self.dispatcher
        scheduler, usage = dispatcher.scheduler, dispatcher.scheduler.drr.usage
        found: dict[str, float] = {
            "waiting": len(dispatcher.waiting),
            "second places": len(dispatcher._retries),
            "inflight": dispatcher.cap.inflight,
            "waiting in the core": usage.requests + usage.bytes + usage.cost_tokens,
            "second ends": scheduler.second_finishes,
            **{f"pool {name}": pool.requests + pool.work for name, pool in scheduler.drr.pools.items()},
            **{f"busy slots of {name}": of_pool.estimator.busy for name, of_pool in scheduler.pools.items()},
        }
        for tenant in scheduler.drr.tenants.values():
            found[f"{tenant.id} runs"] = tenant.running
            found[f"{tenant.id} waits"] = tenant.usage.requests + tenant.usage.bytes + tenant.usage.cost_tokens
            found[f"{tenant.id} unsettled"] = round(tenant.charged - dispatcher.costs.get(tenant.id, 0.0), 6)
        for worker in dispatcher.fleet.workers:
            found[f"{worker.name} holds"] = worker.inflight + len(worker.held) + worker.kv_held_tokens
            found[f"{worker.name} works"] = worker.work_tokens
        return [f"{name}: {value}" for name, value in found.items() if value]


class Left:
    """What is there after requests have ended."""

    def __init__(self, open: tuple[int, int], earlier: Iterable[object] = ()) -> None:
        gc.collect()
        self.open = open
        objects = gc.get_objects()
        self.objects = Counter(map(type, objects))
        self.objects.subtract(type(one) for one in objects if type(one) in REMEMBERING and _remembers_a_class(one))
        known = set(map(id, earlier))
        self.of_requests = Counter(type(one) for one in objects if type(one) in OF_REQUESTS and id(one) not in known)

    def more(self, before: Left, at_least: float) -> dict[type, int]:
        """What has become more by so many."""
        return {kind: more for kind, more in (self.objects - before.objects).items() if more >= at_least}


OF_REQUESTS = (DeadlineTimer, InferenceRequest)
REMEMBERING = (weakref.ReferenceType, types.BuiltinFunctionType)


def _remembers_a_class(one: object) -> bool:
    """Whether it is half of an entry in which an abstract class remembers who is no instance of it.

    Made once for each class that is asked about, a hundred at a time where the abstract class has many heirs.
    """
    if type(one) is weakref.ReferenceType:
        one = one.__callback__
    return type(one) is types.BuiltinFunctionType and one.__name__ == "_destroy"


@asynccontextmanager
async def scene(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, stream: bool, workers: int = 2, places: int = 100, **settings: Any
) -> AsyncIterator[Scene]:
    """A watched router before workers with so many slots each, ready for clients that leave at the stage."""
    made: list[WatchedDispatcher] = []
    gc.collect()
    earlier = [one for one in gc.get_objects() if type(one) in OF_REQUESTS]
    cancels, log, go, failed = Cancels(), io.BytesIO(), asyncio.Event(), set[str]()

    def watched(*parts: Any) -> WatchedDispatcher:
        made.append(WatchedDispatcher(*parts))
        return made[-1]

    monkeypatch.setattr(app, "Dispatcher", watched)
    monkeypatch.setattr(app, "Cancels", lambda: cancels)
    monkeypatch.setattr(app, "Journal", ForgetfulJournal)
    monkeypatch.setattr(app, "Log", lambda name, level: Log(name, "INFO", stream=log))
    monkeypatch.setattr(health, "FAILURES", 10**9)  # the retry is looked at, not who is ejected
    for limit in LIMITS:
        monkeypatch.setattr(limit, 60.0)  # nor how far a clock leaps
    monkeypatch.setitem(Pool.__init__.__kwdefaults__, "connect_timeout_s", 60.0)
    made_workers = [SteppingWorker(stage, places, go, failed) for _ in range(workers)]
    chosen = {
        "max_inflight": 1 if stage is Stage.QUEUED else places, "max_queue_size": 2 * places, "retry_share": 1.0,
        "tenant_queue_size": 2 * places, "retrieval_budget_ms": 60_000, "default_ttft_ms": 30_000, **settings,
    }  # fmt: skip
    retrieval = StalledRetrieval() if stage is Stage.RETRIEVAL else None
    clients: list[Client] = []
    try:
        async with standing(*made_workers, retrieval=retrieval, **chosen) as stand:
            yield Scene(stage, stream, stand, made[0], cancels, log, go, earlier, clients)
    finally:
        for client in clients:
            client.close()


async def leave_in_turns(clients: list[Client]) -> None:
    """They leave one after another, while something else travels from one end to the other."""
    for turn in range(LOOP_TURNS):
        for client in clients[turn::LOOP_TURNS]:
            client.leave()
        await asyncio.sleep(STEP_S if turn % 2 else 0)


async def seen() -> None:
    """What was sent has arrived: the router knows who has left."""
    await asyncio.sleep(50 * LATENCY_S)


def leap(seconds: float) -> None:
    """Put the clock of the running loop forward: whatever was to happen by then is late, and happens now."""
    here().jump(seconds)


def here() -> SimLoop:
    """The running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
