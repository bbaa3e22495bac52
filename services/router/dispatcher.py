"""Admit, place, try, and try once more: from a call to the first output of a worker.

The policy is the simplest honest one: first come, first served, under a hard cap. A request takes a place under
MAX_INFLIGHT and at a worker, in one step on one event-loop turn, or is refused at once with a hint; nothing waits at
the door. What has been admitted is served if it can be: a worker that fails or refuses before the first output costs
one retry, with reduced context, on another worker, and only that retry may wait for a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.ticket import Ticket
from services.router.call import Attempt, Begun, Busy, Call, Whole, WorkerFailed
from services.router.metrics import RouterMetrics
from services.router.workers import Prober, Worker, WorkerPool
from services.runtime.errors import NoSuchModel, Refused, UpstreamFailed
from services.runtime.keepalive import UpstreamError

MIN_RETRY_SLACK_MS = 20.0
MEAN_SERVICE_S_WEIGHT = 0.05  # of the newest sample in the moving average behind the retry hint
FIRST_GUESS_SERVICE_S = 0.5
HINT_JITTER = 0.2


@dataclass(slots=True)
class Place:
    """A worker's place, held on a ticket from the moment of admission."""

    worker: Worker
    ticket: Ticket
    release: Callable[[], None]
    attempt_id: str = ""
    retried: bool = False

    def move_to(self, worker: Worker, release: Callable[[], None]) -> None:
        """Hold another worker's place instead; the old one has been given back."""
        self.worker, self.release = worker, release
        self.ticket.hold(release)


class Dispatcher:
    """The async shell over the cap and the ledger."""

    def __init__(self, cap: InflightCap, pool: WorkerPool, prober: Prober, metrics: RouterMetrics, rng: Random) -> None:
        self.cap = cap
        self.pool = pool
        self._prober = prober
        self._metrics = metrics
        self._rng = rng
        self._prefix, self._attempts = f"{rng.getrandbits(48):012x}", count(1)
        self._service_s = FIRST_GUESS_SERVICE_S
        self._cancels: set[asyncio.Task[None]] = set()

    def resolve_model(self, model: str | None) -> str:
        """The model asked for, or the first. Raises NoSuchModel, or Refused when nobody serves anything yet."""
        known = self.pool.models
        if not known:
            raise self._no_capacity("no worker has answered yet")
        if model is None:
            return known[0]
        if model not in known:
            raise NoSuchModel(model)
        return model

    def admit(self, ticket: Ticket, model: str) -> Place | Refused:
        """A place under the cap and at a worker, or a refusal, now. A refusal here is a result, and never raised."""
        depth = self.cap.inflight
        if not self.cap.try_take():
            return self._yield("every place is taken", "max_inflight", depth)
        ticket.hold(self.cap.give_back)
        worker = self.pool.take(model)
        if worker is None:
            if not self.pool.alive(model):
                return self._no_capacity(f"no worker that serves {model} is alive")
            return self._yield("every worker's places are taken", "workers_full", depth)
        release = self.pool.releaser(worker)
        ticket.hold(release)
        return Place(worker, ticket, release)

    async def send(self, call: Call, place: Place) -> Whole | Begun:
        """The answer, or a stream with its first output. Raises Refused, UpstreamFailed or BadInput."""
        while True:
            try:
                return await self._attempt(call, place)
            except UpstreamError as error:
                if not isinstance(error, WorkerFailed):
                    self._prober.suspect(place.worker, error)
                reason = "unreachable" if not error.sent else "failed"
                failure: Exception = error
            except Busy as busy:
                place.worker.draining = place.worker.draining or busy.draining
                reason = "refused"
                failure = busy
            call = await self._move(call, place, reason, failure)

    async def _attempt(self, call: Call, place: Place) -> Whole | Begun:
        remaining_ms = (call.deadline_at - asyncio.get_running_loop().time()) * 1000
        if remaining_ms <= 0:
            raise Refused(Outcome.DEADLINE_EXPIRED, "the deadline passed before a worker was reached")
        place.attempt_id = f"{self._prefix}-{next(self._attempts):x}"
        attempt, upstream = Attempt(place.attempt_id, remaining_ms), place.worker.upstream
        if not call.stream:
            return await upstream.whole(call, attempt)
        stream = await upstream.open(call, attempt)
        try:
            return Begun(stream, await stream.next())
        except BaseException:
            stream.close()
            raise

    async def _move(self, call: Call, place: Place, reason: str, failure: Exception) -> Call:
        """Take another place for the one retry. A worker that was never reached costs no retry."""
        free_of_charge = reason == "unreachable"
        if place.retried and not free_of_charge:
            raise self._give_up(call, failure)
        place.retried = place.retried or not free_of_charge
        self._metrics.retry(reason)
        await self._replace(call, place, failure)
        return call if free_of_charge else call.reduced()

    async def _replace(self, call: Call, place: Place, failure: Exception) -> None:
        left = place.worker
        place.ticket.release(place.release)
        delay_s = failure.delay_ms / 1000 if isinstance(failure, Busy) else 0.0
        now = asyncio.get_running_loop().time()
        while True:
            alive = self.pool.alive(call.model)
            if not alive:
                raise self._no_capacity(f"no worker that serves {call.model} is alive")
            others = [worker for worker in alive if worker is not left]
            worker = self.pool.take(call.model, excluding=left if others else None)
            if worker is left and now + delay_s + MIN_RETRY_SLACK_MS / 1000 > call.deadline_at:
                self.pool.releaser(worker)()
                raise self._give_up(call, failure)
            if worker is not None:
                place.move_to(worker, self.pool.releaser(worker))
                break
            await self.pool.waiting(call.deadline_at)
        if place.worker is left:
            await asyncio.sleep(delay_s)

    def cancel(self, place: Place) -> None:
        """Tell a worker that nobody waits; beside the socket that closes, so it may fail."""
        task = asyncio.get_running_loop().create_task(_quietly_cancel(place.worker, place.attempt_id))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    def served(self, seconds: float) -> None:
        """Learn how long a place is held, for the hint."""
        self._service_s += MEAN_SERVICE_S_WEIGHT * (seconds - self._service_s)

    def retry_hint_ms(self) -> float:
        """When a place should come free: mean service time over the places that drain side by side, and up to a
        fifth more, so that those who were refused together do not come back together."""
        draining_at_once = min(self.cap.cap, self.pool.slots or 1)
        rounds = max(1.0, self.cap.inflight / draining_at_once)
        return 1000 * self._service_s * rounds * (1 + HINT_JITTER * self._rng.random())

    def _yield(self, message: str, reason: str, depth: int) -> Refused:
        return Refused(Outcome.YIELD, message, reason=reason, retry_hint_ms=self.retry_hint_ms(), queue_depth=depth)

    def _no_capacity(self, message: str) -> Refused:
        return Refused(Outcome.NO_CAPACITY, message, reason="no_worker", retry_hint_ms=1000)

    def _give_up(self, call: Call, failure: Exception) -> Exception:
        if isinstance(failure, Busy):
            refusal = "the workers refused, and so did the retry"
            return Refused(Outcome.YIELD, refusal, reason="workers_busy", retry_hint_ms=failure.delay_ms)
        if not self.pool.alive(call.model):
            return self._no_capacity(f"no worker that serves {call.model} is alive")
        return UpstreamFailed(f"two workers failed: {failure}")


async def _quietly_cancel(worker: Worker, attempt_id: str) -> None:
    try:
        async with asyncio.timeout(1.0):
            await worker.upstream.cancel(attempt_id)
    except (UpstreamError, TimeoutError):
        return  # the closed socket tells it as well
