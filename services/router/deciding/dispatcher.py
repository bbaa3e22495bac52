"""Who starts, and where: the async shell over the core's decisions and the fleet's ledger.

    admit          one decision, in one step of the event loop: refused, or queued, or started in the same step
    wait_for_slot  wait for the start; the request that frees a slot starts the next one, and wakes exactly that one
    release        the end, however it came: out of the queue or off the worker, charged, learned from; the next starts

The scheduler (`core.scheduler`) says which request starts, the fleet says where there is room; both are synchronous
and have the only word on it. A slot that comes free is given away in the same step: no task polls, and no herd wakes.
A request that can no longer be in time is taken out by a timer, at that moment, and not when a slot comes free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import count
from math import inf
from random import Random
from typing import cast

from services.core.account import TenantSpec
from services.core.admissioncheck import Rejection
from services.core.estimator import Estimator
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.request import Request, Stage
from services.core.scheduler import Scheduler
from services.router.deciding.refusing import Refusing
from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker
from services.runtime.errors import NoSuchModel, Refused

LATE_S = 0.0005
"""A timer may fire a little early by the loop's clock; what is due so soon is due."""

NOBODY_S = 1.0
"""How long those let in wait for a model's last worker to come back: a lost connection is mended by the next probe."""


class Dispatcher:
    """One for each router. Everything but `wait_for_slot` and `requeue_for_retry` decides without waiting."""

    def __init__(self, scheduler: Scheduler, fleet: Fleet, cap: InflightCap, rng: Random) -> None:
        self.scheduler = scheduler
        self.fleet = fleet
        self.cap = cap
        self.refusing = Refusing(rng.random)
        self.draining = False
        self.waiting: dict[InferenceRequest, None] = {}  # in the order in which they came
        self._retries: deque[InferenceRequest] = deque()
        self._dead_since: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._first_pool = 0
        self._prefix, self._attempts = f"{rng.getrandbits(48):012x}", count(1)
        fleet.on_change(self.capacity_changed)

    # ---- settings and capacity

    def resolve_model(self, model: str | None) -> str:
        """The model asked for, or the first. Raises NoSuchModel, or Refused when no worker serves anything yet."""
        known = self.fleet.models
        if not known:
            raise self.refusing.no_capacity("no worker has answered yet")
        if model is None:
            return known[0]
        if model not in known:
            raise NoSuchModel(model)
        return model

    def configure(self, tenants: Iterable[TenantSpec]) -> None:
        """Make or change the tenants of a file."""
        for spec in tenants:
            self.scheduler.configure(spec)

    def estimator(self, request: InferenceRequest) -> Estimator:
        """What is known of the workers that serve it."""
        estimator = self.scheduler.estimator(request.pool)
        assert estimator is not None, f"{request!r} was admitted to a pool of which nothing is known"
        return estimator

    def prefill_s(self, request: InferenceRequest) -> float:
        """How long reading its prompt takes, by what is known; 0 while nothing is."""
        estimator = self.scheduler.estimator(self.fleet.pool_of(request.model) or request.model)
        return 0.0 if estimator is None else estimator.prefill_s(request.prompt_tokens + request.context_tokens)

    def capacity_changed(self) -> None:
        """Workers came, went, or take more or less than before."""
        now = asyncio.get_running_loop().time()
        for pool in self.fleet.pools:
            self.scheduler.capacity(now, min(self.fleet.slots(pool), self.cap.cap), pool)
        self._watch_the_dead(now)
        self._dispatch_retries()
        self._pump_all(now)

    def switch(self, policies: Policies) -> None:
        """These mechanisms are on from here on. Requests that can no longer be in time by them end in the next step."""
        now = asyncio.get_running_loop().time()
        self.scheduler.switch(now, policies)
        self._set_timer(now)
        self._pump_all(now)

    def drain(self) -> None:
        """Requests that wait are rejected; those that run go on."""
        self.draining = True
        now = asyncio.get_running_loop().time()
        for request in list(self.waiting):
            self.scheduler.leave(now, request)
            self._reject(request, self.refusing.leaving())
        if self._timer is not None:  # nothing waits any more, and nothing will
            self._timer.cancel()
            self._timer, self._timer_at = None, inf

    # ---- the door

    def admit(self, now: float, request: InferenceRequest) -> Refused | None:
        """A place in line, or at a worker at once (None); or a refusal. A refusal here is a result, never raised."""
        if self.draining:
            return self.refusing.leaving()
        request.pool = self.fleet.pool_of(request.model) or request.model
        if not self.fleet.alive(request.model) and self.fleet.slots(request.pool):  # the core rejects at 0 slots
            return self.refusing.nobody_serves(request.model)
        decision = self.scheduler.admit(now, request)
        if isinstance(decision, Rejection):
            return self.refusing.at_the_door(request, decision, self.scheduler.usage.requests)
        if request.ready:
            self._pump(now, request.pool)
        if request.worker is None:
            if request.refusal is not None:
                return request.refusal
            self.waiting[request] = None
            self._set_timer(now)
        return None

    # ---- the line

    def ready(self, now: float, request: InferenceRequest, prompt_tokens: int) -> None:
        """Its retrieval is done, and its prompt is this long: it could start from now on."""
        self.scheduler.counted(now, request, prompt_tokens)
        self.scheduler.ready(now, request)
        if request.stage is Stage.WAITING:
            self._pump(now, request.pool)
            self._set_timer(now)  # its client's patience counts from now, and may end before anyone else's time

    async def wait_for_slot(self, request: InferenceRequest) -> Worker:
        """Wait for a slot. Raises Refused when its time comes first. Cancelled, its owner releases it."""
        while request.worker is None:
            if request.refusal is not None:
                raise request.refusal
            await self._sleep(request)
        return request.worker

    async def requeue_for_retry(self, request: InferenceRequest) -> Worker:
        """For the one retry: another worker's place, before all who wait; its own again, when it has rested, if alone.

        Raises Refused when for NOBODY_S no worker has been left that could. It keeps its place under MAX_INFLIGHT, so
        that bounds these too.
        """
        request.failed_worker = request.worker
        self._leave(request)
        self._retries.append(request)
        now = asyncio.get_running_loop().time()
        self._dispatch_retries()
        self._pump_all(now)
        try:
            while request.worker is None:
                if request.refusal is not None:
                    raise request.refusal
                await self._sleep(request)
        finally:
            if request in self._retries:
                self._retries.remove(request)
        return request.worker

    async def _sleep(self, request: InferenceRequest) -> None:
        request.waiter = asyncio.get_running_loop().create_future()
        try:
            await request.waiter
        finally:
            request.waiter = None

    def first_token(self, at: float, request: InferenceRequest) -> None:
        """Its prompt has been read. A second try says nothing about reading: the first one is in its time as well."""
        if request.retried:
            request.first_token_at = at
        else:
            self.scheduler.first_token(at, request)

    # ---- the slots

    def release(
        self, now: float, request: InferenceRequest, outcome: Outcome, prompt_tokens: float = 0.0,
        completion_tokens: float = 0.0, pace_s: float | None = None,
    ) -> None:  # fmt: skip
        """It has ended. Out of the line, or off its worker with what it used; then the next may start. Once."""
        if request.stage is Stage.WAITING:
            self.waiting.pop(request, None)
            self.scheduler.leave(now, request)
            self._pump_all(now)  # whom it stood before may fit where it did not
        elif request.stage is Stage.RUNNING:
            self.scheduler.finish(now, request, outcome, prompt_tokens, completion_tokens)
            self._leave(request, pace_s, served=outcome is Outcome.SERVED)
            self.cap.give_back()
            if self._retries:
                self._dispatch_retries()
            if self.waiting:
                self._pump_all(now)

    def next_attempt(self, request: InferenceRequest) -> str:
        """A name for one try at one worker. It is the router's own: two clients may use the same `x-request-id`."""
        request.attempts += 1
        request.attempt_id = f"{self._prefix}-{next(self._attempts):x}"
        return request.attempt_id

    def _pump_all(self, now: float) -> None:
        """Every pool starts what it can; with more than one, they take turns at being first under MAX_INFLIGHT."""
        pools, first = self.fleet.pools, self._first_pool
        for at in range(first, first + len(pools)):
            if self._pump(now, pools[at % len(pools)]):
                self._first_pool = (at + 1) % len(pools)

    def _pump(self, now: float, pool: str) -> bool:
        """Start what can start in this pool, and reject what can no longer be in time. Whether anything started."""
        before = self.cap.taken_total
        cap, fleet, waiting = self.cap, self.fleet, self.scheduler.usage
        while waiting.requests and cap.inflight < cap.cap and fleet.room(pool):
            started, gone = self.scheduler.next(now, pool, self._fits)
            for other in gone:
                self._reject(cast(InferenceRequest, other), self._evicted(now, other))
            if started is None:
                break
            request = cast(InferenceRequest, started)
            taken = cap.try_take()
            request.worker = fleet.take(request)
            assert taken, f"{request!r} was started above MAX_INFLIGHT: {self!r}"
            assert request.worker is not None, f"{request!r} fitted, and found no place: {self!r}"
            self.waiting.pop(request, None)
            request.wake()
        return self.cap.taken_total > before

    def _fits(self, request: Request) -> bool:
        return self.fleet.fits(cast(InferenceRequest, request))

    def _leave(self, request: InferenceRequest, pace_s: float | None = None, *, served: bool = False) -> None:
        worker, request.worker = request.worker, None
        if worker is not None:
            self.fleet.give_back(worker, request, pace=pace_s, overloaded=request.overloaded, served=served)

    def _evicted(self, now: float, request: Request) -> Refused:
        hint_s = self.scheduler.hint_s(now, request) if request.expires_for == "patience" else 0.0
        return self.refusing.evicted(now, request, hint_s)

    def _reject(self, request: InferenceRequest, refusal: Refused) -> None:
        assert request.worker is None, f"{request!r} is rejected, and has a slot at {request.worker!r}"
        self.waiting.pop(request, None)
        request.refusal = refusal
        request.wake()

    def _dispatch_retries(self) -> None:
        """Those who wait for a second place take what is free, first come first served."""
        now = asyncio.get_running_loop().time() + LATE_S
        for request in list(self._retries):
            assert request.worker is None, f"{request!r} waits for a place, and has one at {request.worker!r}"
            if self._abandoned(request.model, now):
                request.refusal = self.refusing.nobody_serves(request.model)
            else:
                others = self.fleet.alive(request.model, request.failed_worker)
                request.worker = self.fleet.take(request, request.failed_worker if others else None)
            if request.worker is not None or request.refusal is not None:
                self._retries.remove(request)
                request.wake()

    # ---- no worker left

    def _watch_the_dead(self, now: float) -> None:
        """Note which models have no worker left, since when, and look again when that has lasted."""
        for model in self.fleet.models:
            if self.fleet.alive(model):
                self._dead_since.pop(model, None)
            elif model not in self._dead_since:
                self._dead_since[model] = now
                asyncio.get_running_loop().call_later(NOBODY_S, self._refuse_the_abandoned)

    def _abandoned(self, model: str, now: float) -> bool:
        """Whether no worker has served it for a while, or it has left the worker list."""
        if self.fleet.alive(model):
            return False
        return model not in self._dead_since or now - self._dead_since[model] >= NOBODY_S

    def _refuse_the_abandoned(self) -> None:
        """Requests for a worker that may come back in a moment wait on; those for none are rejected."""
        now = asyncio.get_running_loop().time() + LATE_S
        for request in list(self.waiting):
            if now - self._dead_since.get(request.model, now) >= NOBODY_S:
                self.scheduler.leave(now, request)
                self._reject(request, self.refusing.nobody_serves(request.model))
        self._dispatch_retries()
        self._pump_all(now)

    # ---- time

    def _set_timer(self, now: float) -> None:
        at = self.scheduler.wakes_at()
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(max(at, now), self._time_is_up)

    def _time_is_up(self) -> None:
        now = asyncio.get_running_loop().time() + LATE_S
        self._timer, self._timer_at = None, inf
        gone = self.scheduler.expire(now)
        for request in gone:
            self._reject(cast(InferenceRequest, request), self._evicted(now, request))
        if gone:
            self._pump_all(now)  # as above: those behind them may fit
        if self.waiting:
            self._set_timer(now)

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self.waiting)} wait, {self.cap!r}, {self.fleet!r}>"
