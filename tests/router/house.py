"""A dispatcher over the real core and a fleet that is only a ledger, for virtual time; requests ride through it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from services.core.account import QueueBounds, TenantSpec
from services.core.choices import SchedulerSettings
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.request import Stage
from services.core.scheduler import Scheduler
from services.router.deciding.dispatcher import NO_WORKER_GRACE_S, Dispatcher
from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker
from services.runtime.errors import Refused
from services.runtime.http import become_task

Life = Callable[[InferenceRequest], Coroutine[Any, Any, None]]
"""What a request does with its place."""


@dataclass
class House:
    """A dispatcher and its workers. Rides are requests with a life of their own."""

    workers: list[Worker]
    most: int = 64
    queue: int = 1000
    rides: dict[InferenceRequest, asyncio.Task[Outcome]] = field(default_factory=dict)
    started: list[InferenceRequest] = field(default_factory=list)
    ends: Counter[InferenceRequest] = field(default_factory=Counter)
    refusals: dict[InferenceRequest, Refused] = field(default_factory=dict)
    ended_at: dict[InferenceRequest, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        rng = Random(1)
        stranger = TenantSpec("", QueueBounds(self.queue))
        self.scheduler = Scheduler(SchedulerSettings(QueueBounds(self.queue), stranger, strict=True), rng.random)
        self.fleet = Fleet(self.workers, rng)
        self.cap = InflightCap(self.most)
        self.dispatcher = Dispatcher(self.scheduler, self.fleet, self.cap, rng)
        self.dispatcher.capacity_changed()

    def admit(self, turn: InferenceRequest) -> Refused | None:
        refusal = self.dispatcher.admit(now(), turn)
        if refusal is not None:
            self.refusals[turn] = refusal
        return refusal

    def ride(self, turn: InferenceRequest, life: Life) -> asyncio.Task[Outcome]:
        """Admit it now; what it does with its place is `life`. It is released once, however that ends."""
        assert self.admit(turn) is None
        return self.begin(turn, life)

    def begin(self, turn: InferenceRequest, life: Life) -> asyncio.Task[Outcome]:
        """As a connection begins a handler: its first step at once, and the rest in a task."""
        riding = self._ride(turn, life)
        riding.send(None)
        task = self.rides[turn] = asyncio.create_task(riding)
        return task

    async def _ride(self, turn: InferenceRequest, life: Life) -> Outcome:
        outcome = Outcome.CLIENT_GONE
        try:
            await become_task()
            await self.dispatcher.wait_for_slot(turn)
            self.started.append(turn)
            await life(turn)
            outcome = Outcome.SERVED
        except Refused as refusal:
            self.refusals[turn] = refusal
            outcome = refusal.outcome
        finally:
            self.ends[turn] += 1
            self.ended_at[turn] = now()
            self.dispatcher.release(now(), turn, outcome, turn.prompt_tokens, 10.0)
        return outcome

    def serve(self, turn: InferenceRequest, seconds: float = 1.0) -> asyncio.Task[Outcome]:
        """A request that holds its place so long."""
        return self.ride(turn, lambda _: asyncio.sleep(seconds))

    def hold(self, turn: InferenceRequest) -> asyncio.Task[Outcome]:
        """One that holds its place until it is cancelled."""
        return self.ride(turn, lambda _: asyncio.Event().wait())  # type: ignore[arg-type, return-value]  # its True

    async def again(self, turn: InferenceRequest, seconds: float = 1.0) -> None:
        """Its worker failed; a second place, and then the answer."""
        await self.dispatcher.requeue_for_retry(turn)
        await asyncio.sleep(seconds)

    def down(self, *workers: Worker) -> None:
        for lost in workers:
            lost.health.suspect()
            self.fleet.looked(lost)

    def up(self, *workers: Worker) -> None:
        for back in workers:
            back.health.answered(now(), needed=True)
            self.fleet.looked(back)

    def check(self) -> None:
        """What holds between any two turns of the loop."""
        dispatcher, cap = self.dispatcher, self.cap
        running = [turn for turn in self.rides if turn.stage is Stage.RUNNING]
        seconds = [turn for turn in running if turn.worker is None]
        placed = sum(of.inflight for of in {*self.fleet.workers, *self.fleet.leaving, *self.workers})
        assert cap.inflight == len(running) <= cap.cap
        assert placed == len(running) - len(seconds)
        assert {id(turn) for turn in dispatcher.waiting} == {
            id(turn) for turn in self.rides if turn.stage is Stage.WAITING
        }
        assert self.scheduler.drr.usage.requests == len(dispatcher.waiting)
        assert not [turn for turn in running if turn.worker is not None and turn not in turn.worker.held]
        if cap.inflight < cap.cap:
            heads = [turn for turn in dispatcher.waiting if turn.flow.queue.first is turn]
            assert not [turn for turn in heads if self.fleet.fits(turn)], "a slot is free, and one that fits it waits"
        for turn in seconds:
            alone = not self.fleet.alive(turn.model, turn.failed_worker)
            lost_s = 0.0 if self.fleet.alive(turn.model) else self.loop.time() - dispatcher._dead_since[turn.model]
            assert turn.refusal or lost_s <= NO_WORKER_GRACE_S + 0.001, "a retry waits for nobody"
            assert turn.refusal or not self.fleet.fits(turn, None if alone else turn.failed_worker), (
                "a retry waits beside a slot"
            )
        for turn in self.rides:
            if turn.worker is not None or turn.refusal is not None:
                assert turn.waiter is None or turn.waiter.done(), "it was decided, and its task was not told"

    async def empty(self) -> None:
        """Everyone has ended, and nothing is held."""
        await asyncio.gather(*self.rides.values(), return_exceptions=True)
        self.check()
        assert (self.cap.inflight, self.scheduler.drr.usage.requests, self.dispatcher.waiting) == (0, 0, {})
        assert not any(of.inflight or of.work_tokens or of.kv_held_tokens for of in self.workers)
        assert not any(of_pool.estimator.busy for of_pool in self.scheduler.pools.values())
        assert set(self.ends.values()) <= {1}
        assert len(self.ends) == len(self.rides)


def now() -> float:
    return asyncio.get_running_loop().time()


def turn(tenant: str = "t", *, model: str = "m", within_s: float = 100.0, **fields: Any) -> InferenceRequest:
    fields = {"prompt_tokens": 10, "max_tokens": 10, **fields}
    return InferenceRequest("r", tenant, now(), now() + within_s, model=model, **fields)
