"""The asynchronous side of scheduling: which request starts, and on which worker.

The scheduler (`core.scheduler`) decides which request starts and the fleet where there is room; both are synchronous. A
freed slot is reused in the same step of the event loop and wakes only the request that gets it; no task polls. A timer
evicts a request at the moment from which it can no longer be in time, without waiting for a slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
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
from services.core.request import RUNNING, WAITING, Request
from services.core.scheduler import Scheduler
from services.router.deciding.refusing import Refusing
from services.router.deciding.sizing import affinity
from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker
from services.runtime.errors import NoSuchModel, Refused

LATE_S = 0.0005
"""A timer may fire slightly early by the loop's clock; whatever is due this soon is due."""

NO_WORKER_GRACE_S = 1.0
"""How long admitted requests wait for a model's last worker to return: the next probe usually finds it up again."""


class Dispatcher:
    """One per router. Only `wait_for_slot` and `requeue_for_retry` wait."""

    def __init__(self, scheduler: Scheduler, fleet: Fleet, cap: InflightCap, rng: Random) -> None:
        self.scheduler = scheduler
        self.fleet = fleet
        self.cap = cap
        self.refusing = Refusing(rng.random)
        self._fits = cast(Callable[[Request], bool], fleet.fits)  # the scheduler returns what it was given
        self.draining = False
        self.waiting: dict[InferenceRequest, None] = {}  # in order of arrival
        self._retries: deque[InferenceRequest] = deque()
        self._dead_since: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._ahead_timer: asyncio.TimerHandle | None = None
        self._ahead_at = inf
        self._first_pool = 0
        self._prefix, self._attempts = f"{rng.getrandbits(48):012x}-", count(1)
        fleet.on_change(self.capacity_changed)

    # ---- settings and capacity

    def resolve_model(self, model: str | None) -> str:
        """The named model, or the first. Raises NoSuchModel, or Refused if no worker has reported a model yet."""
        known = self.fleet.models
        if not known:
            raise self.refusing.no_capacity("no worker has answered yet")
        if model is None:
            return known[0]
        if model not in known:
            raise NoSuchModel(model)
        return model

    def configure(self, tenants: Iterable[TenantSpec]) -> None:
        for spec in tenants:
            self.scheduler.configure(spec)

    def estimator(self, request: InferenceRequest) -> Estimator:
        estimator = self.scheduler.estimator(request.pool)
        assert estimator is not None, f"{request!r} was admitted to a pool of which nothing is known"
        return estimator

    def prefill_s(self, request: InferenceRequest) -> float:
        """The predicted prefill time of its prompt; 0 while nothing is known."""
        estimator = self.scheduler.estimator(self.fleet.pool_of(request.model) or request.model)
        return 0.0 if estimator is None else estimator.prefill_s(request.prompt_tokens + request.context_tokens)

    def likely_tokens(self, request: InferenceRequest) -> int:
        """The longest likely answer to an open-ended request."""
        return self.scheduler.likely_tokens(request.tenant, self.fleet.pool_of(request.model) or request.model)

    def capacity_changed(self) -> None:
        """Workers joined or left, or their capacity changed."""
        now = asyncio.get_running_loop().time()
        for pool in self.fleet.pools:
            self.plan(now, pool)
        self._watch_the_dead(now)
        self._dispatch_retries()
        self._pump_all(now)

    def plan(self, now: float, pool: str) -> None:
        """Tell the scheduler how many slots the pool has."""
        self.scheduler.capacity(now, min(self.fleet.slots(pool), self.cap.cap), pool)

    def start_waiting(self, now: float, pool: str) -> None:
        """A slot of the pool may have become free: start what can."""
        if self._retries:
            self._dispatch_retries()
        self._pump(now, pool)

    def retries(self, pool: str) -> dict[str, int]:
        """Requests that wait for the slot of their retry, by class."""
        waiting: dict[str, int] = {}
        for request in self._retries:
            if request.pool == pool:
                name = request.flow.node.name
                waiting[name] = waiting.get(name, 0) + 1
        return waiting

    def switch(self, policies: Policies) -> None:
        """Apply these policies. Requests that can no longer be in time under them end in the next step."""
        now = asyncio.get_running_loop().time()
        self.scheduler.switch(now, policies)
        self._set_timer(now)
        self._pump_all(now)

    def drain(self) -> None:
        """Reject the queued requests; running ones continue."""
        self.draining = True
        now = asyncio.get_running_loop().time()
        for request in list(self.waiting):
            self.scheduler.leave(now, request)
            self._reject(request, self.refusing.leaving())
        for timer in (self._timer, self._ahead_timer):  # nothing waits any more, and nothing will
            if timer is not None:
                timer.cancel()
        self._timer, self._timer_at = None, inf
        self._ahead_timer, self._ahead_at = None, inf

    # ---- admission

    def admit(self, now: float, request: InferenceRequest) -> Refused | None:
        """Queue or start the request (None), or return the rejection. A rejection is never raised here."""
        if self.draining:
            return self.refusing.leaving()
        request.pool = self.fleet.pool_of(request.model) or request.model
        if not self.fleet.alive(request.model) and self.fleet.slots(request.pool):  # without slots the core rejects
            return self.refusing.no_live_worker(request.model)
        decision = self.scheduler.admit(now, request, self._fits if self.has_room(request.pool) else None)
        if isinstance(decision, Rejection):
            return self.refusing.at_admission(request, decision, self.scheduler.usage.requests)
        if request.stage is RUNNING:
            self._take_slot(request)
            return None
        if request.ready:
            self._pump(now, request.pool)
        if request.worker is None:
            if request.refusal is not None:
                return request.refusal
            self.waiting[request] = None
            self._set_timer(now)
        return None

    def has_room(self, pool: str) -> bool:
        """Whether a request could start in this pool now."""
        return self.cap.inflight < self.cap.cap and self.fleet.room(pool)

    # ---- the queue

    def ready(self, now: float, request: InferenceRequest, prompt_tokens: int) -> None:
        """Retrieval is done and the prompt has this length: the request can start from now on."""
        self.scheduler.counted(now, request, prompt_tokens)
        self.scheduler.ready(now, request)
        if request.stage is WAITING:
            self._pump(now, request.pool)
            self._set_timer(now)  # its client's wait limit counts from now, and may come first

    async def wait_for_slot(self, request: InferenceRequest) -> Worker:
        """Wait for a slot. Raises Refused if the request is evicted first. If cancelled, the caller releases it."""
        while request.worker is None:
            if request.refusal is not None:
                raise request.refusal
            await self._sleep(request)
        return request.worker

    async def requeue_for_retry(self, request: InferenceRequest) -> Worker:
        """A slot at another worker for the one retry, before all queued requests; at the same worker, after its
        rest, if it is the only one.

        Raises Refused if no worker has served the model for NO_WORKER_GRACE_S. The request keeps its place under
        MAX_INFLIGHT, which so bounds the waiting retries too.
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
        """Its prompt has been read. A retry is no sample of the prefill: its time includes the first attempt."""
        if request.retried:
            request.first_token_at = at
        else:
            self.scheduler.first_token(at, request)

    # ---- slots

    def release(
        self, now: float, request: InferenceRequest, outcome: Outcome, prompt_tokens: float = 0.0,
        completion_tokens: float = 0.0, pace_s: float | None = None,
    ) -> None:  # fmt: skip
        """End the request, once: out of the queue, or off its worker with the tokens it used; start what fits then."""
        if request.stage is WAITING:
            self.waiting.pop(request, None)
            self.scheduler.leave(now, request)
            self._pump_all(now)  # requests behind it may fit now
        elif request.stage is RUNNING:
            self.scheduler.finish(now, request, outcome, prompt_tokens, completion_tokens)
            self._leave(request, pace_s, served=outcome is Outcome.SERVED)
            self.cap.give_back()
            if self._retries:
                self._dispatch_retries()
            if self.waiting:
                self._pump_all(now)

    def next_attempt(self, request: InferenceRequest) -> str:
        """A new attempt id. It is the router's own, since two clients may use the same `x-request-id`."""
        request.attempts += 1
        request.attempt_id = self._prefix + hex(next(self._attempts))[2:]
        return request.attempt_id

    def _pump_all(self, now: float) -> None:
        """Start what each pool can; the pools alternate in going first under MAX_INFLIGHT."""
        pools, first = self.fleet.pools, self._first_pool
        for at in range(first, first + len(pools)):
            if self._pump(now, pools[at % len(pools)]):
                self._first_pool = (at + 1) % len(pools)

    def _pump(self, now: float, pool: str) -> bool:
        """Start what this pool can, and reject what can no longer be in time; returns whether anything started."""
        before = self.cap.taken_total
        cap, fleet, waiting = self.cap, self.fleet, self.scheduler.usage
        while waiting.requests and cap.inflight < cap.cap and (fleet.room(pool) or self._look_ahead(now, pool)):
            started, gone = self.scheduler.next(now, pool, self._fits)
            for other in gone:
                self._reject(cast(InferenceRequest, other), self._evicted(now, other))
            if started is None:
                break
            request = cast(InferenceRequest, started)
            self._take_slot(request)
            self.waiting.pop(request, None)
            request.wake()
        return self.cap.taken_total > before

    def _look_ahead(self, now: float, pool: str) -> bool:
        """Whether a request may be sent ahead to a worker of which a slot is about to be free. If not, the timer is set
        for when one is.
        """
        estimator = self.scheduler.estimator(pool)
        lead_s = 0.0 if estimator is None else estimator.lead_s
        if not lead_s:
            return False
        at = self.fleet.look_ahead(now, pool, lead_s)
        if self.fleet.room(pool):
            return True
        if at < self._ahead_at:
            if self._ahead_timer is not None:
                self._ahead_timer.cancel()
            self._ahead_at = at
            self._ahead_timer = asyncio.get_running_loop().call_at(at, self._send_ahead)
        return False

    def _send_ahead(self) -> None:
        self._ahead_timer, self._ahead_at = None, inf
        self._pump_all(asyncio.get_running_loop().time() + LATE_S)

    def _take_slot(self, request: InferenceRequest) -> None:
        """Take the slot at a worker that was found free for it."""
        taken, parsed = self.cap.try_take(), request.parsed
        if not request.affinity:
            request.affinity = affinity(parsed.messages, parsed.prompt)
        request.worker = self.fleet.take(request, found=True)
        assert taken, f"{request!r} was started above MAX_INFLIGHT: {self!r}"
        assert request.worker is not None, f"{request!r} fitted, and found no place: {self!r}"

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
        """Give free slots to waiting retries, first come first served."""
        now = asyncio.get_running_loop().time() + LATE_S
        for request in list(self._retries):
            assert request.worker is None, f"{request!r} waits for a place, and has one at {request.worker!r}"
            if self._abandoned(request.model, now):
                request.refusal = self.refusing.no_live_worker(request.model)
            else:
                others = self.fleet.alive(request.model, request.failed_worker)
                request.worker = self.fleet.take(request, request.failed_worker if others else None)
            if request.worker is not None or request.refusal is not None:
                self._retries.remove(request)
                request.wake()

    # ---- models without a worker

    def _watch_the_dead(self, now: float) -> None:
        """Note since when a model has no live worker, and check again after NO_WORKER_GRACE_S."""
        for model in self.fleet.models:
            if self.fleet.alive(model):
                self._dead_since.pop(model, None)
            elif model not in self._dead_since:
                self._dead_since[model] = now
                asyncio.get_running_loop().call_later(NO_WORKER_GRACE_S, self._refuse_the_abandoned)

    def _abandoned(self, model: str, now: float) -> bool:
        """Whether no worker has served it for NO_WORKER_GRACE_S, or it has left the worker list."""
        if self.fleet.alive(model):
            return False
        return model not in self._dead_since or now - self._dead_since[model] >= NO_WORKER_GRACE_S

    def _refuse_the_abandoned(self) -> None:
        """Reject the requests of models that have had no worker for NO_WORKER_GRACE_S; others keep waiting."""
        now = asyncio.get_running_loop().time() + LATE_S
        for request in list(self.waiting):
            if now - self._dead_since.get(request.model, now) >= NO_WORKER_GRACE_S:
                self.scheduler.leave(now, request)
                self._reject(request, self.refusing.no_live_worker(request.model))
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
            self._pump_all(now)  # requests behind them may fit now
        if self.waiting:
            self._set_timer(now)

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self.waiting)} wait, {self.cap!r}, {self.fleet!r}>"
