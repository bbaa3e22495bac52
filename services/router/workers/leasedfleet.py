"""The workers of one of several routers: a slot is free here only while it is lent to this router.

`Worker.slots` is what the worker lends. It changes with grants, and falls to 0 when the lease ends, which is looked at
before each choice: a router that was frozen finds its leases ended before it starts anything.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from services.contracts.lease import EndedRequest
from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker


def _nothing(pool: str) -> None:
    """The default until somebody sends asks."""


class LeasedFleet(Fleet):
    """`clock` is the event loop's."""

    def __init__(self, workers: list[Worker], rng: Random, clock: Callable[[], float]) -> None:
        self.planned: dict[str, int] = {}
        """By pool: the borrowed slots that its predictions count with."""
        self._clock = clock
        self._now = 0.0  # of the last look at the leases, for the request that starts after it in the same step
        self._lapses_at = inf  # no lease ends before
        self._touched: Callable[[str], None] = _nothing
        super().__init__(workers, rng)

    def on_touch(self, call: Callable[[str], None]) -> None:
        """Call `call` with a pool whenever a slot of it was looked for, taken or given back: what this router asks for
        may have changed.
        """
        self._touched = call

    def slots(self, pool: str) -> int:
        """The borrowed slots to plan with, and those of live workers that do not lend."""
        own = [worker.slots for worker in self.workers if pool in worker.pools and worker.live and not worker.is_shared]
        return self.planned.get(pool, 0) + sum(own)

    def room(self, pool: str) -> bool:
        self._touched(pool)
        self.lapse()
        return super().room(pool)

    def take(self, request: InferenceRequest, excluding: Worker | None = None, *, found: bool = False) -> Worker | None:
        """A slot that was found is taken as of that look. The clock has gone on since, and a lease that has ended
        meanwhile might as well have ended while the request is under way: the worker counts that request too.
        """
        if not found:
            self.lapse()
        worker = super().take(request, excluding)
        if worker is not None and worker.lease is not None:
            worker.lease.start(self._now)
            self._touched(request.pool)
        return worker

    def give_back(
        self,
        worker: Worker,
        request: InferenceRequest,
        *,
        pace: float | None = None,
        overloaded: bool = False,
        served: bool = False,
    ) -> None:
        """Free the request's slot, or give it back to the worker, as its answer says."""
        lease = worker.lease
        if lease is not None:
            now = self._clock()
            if lease.is_of_desk:
                lease.note_end(_ended(request, now), overloaded=overloaded)
            lease.end(now, None if request.end is None else request.end.lease)
            worker.slots = lease.holding.may(now)
            self._lapses_at = min(self._lapses_at, lease.holding.lapses_at)
            self._touched(request.pool)
        super().give_back(worker, request, pace=pace, overloaded=overloaded, served=served)

    def granted(self, worker: Worker) -> None:
        """A grant of this worker has arrived, or its lease has ended."""
        lease = worker.lease
        if lease is not None:
            worker.slots = lease.holding.may(self._clock())
            if lease.is_of_desk:
                worker.announced_slots = lease.holding.slots
            if worker.slots:
                self._lapses_at = min(self._lapses_at, lease.holding.lapses_at)
            self._counted(worker)

    def lapse(self) -> None:
        """End the leases whose time is over."""
        self._now = now = self._clock()
        if now < self._lapses_at:
            return
        ends = [inf]
        for worker in [*self.workers, *self.leaving]:
            lease = worker.lease
            if lease is not None and worker.slots:
                worker.slots = lease.holding.may(now)
                self._counted(worker)
                if worker.slots:
                    ends.append(lease.holding.lapses_at)
        self._lapses_at = min(ends)

    def review(self, worker: Worker) -> None:
        """Tell the worker's lease whether requests may be sent there."""
        lease = worker.lease
        if lease is not None:
            takes = worker.live and not worker.resting
            lease.use(self._clock(), takes_requests=takes, slots=worker.announced_slots)

    def _put_right(self, worker: Worker, new: bool) -> None:
        self.review(worker)
        super()._put_right(worker, new)


def _ended(request: InferenceRequest, now: float) -> EndedRequest:
    """What a learned limit needs to know of it (`core.pace`)."""
    end = request.end
    return (0.0, 0, 0) if end is None else (now - request.sent_at, end.prompt_tokens, end.completion_tokens)
