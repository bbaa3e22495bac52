"""First in, first out: unbounded, bounded, or with TTL at dequeue.

None cancels: jobs of clients that left still run, and a job that starts just before its deadline runs to its end. With
retries, this keeps an overload alive after its cause has gone (a metastable failure, Bronson et al., HotOS 2021).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from loadtests.simulator.job import Job
from loadtests.simulator.policy import No, Policy, Refusal
from services.core.outcome import Outcome

FULL = No(Outcome.TENANT_QUEUE_FULL)


class Fifo(Policy):
    """One queue. `queue_size` bounds it; `drops_expired` drops expired jobs at dequeue."""

    def __init__(self, *, queue_size: int | None = None, drops_expired: bool = False) -> None:
        if queue_size is not None and queue_size < 1:
            raise ValueError(f"queue_size must be at least 1, got {queue_size}")
        self._queue: deque[Job] = deque()
        self._queue_size = queue_size
        self._drops_expired = drops_expired

    def offer(self, now: float, job: Job) -> Refusal | None:
        if self._queue_size is not None and len(self._queue) >= self._queue_size:
            return FULL
        self._queue.append(job)
        return None

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        dropped: list[Job] = []
        while self._queue:
            job = self._queue.popleft()
            if not self._drops_expired or now < job.deadline:
                return job, dropped
            dropped.append(job)
        return None, dropped

    def __repr__(self) -> str:
        bound = "no bound" if self._queue_size is None else f"at most {self._queue_size}"
        return f"<Fifo of {len(self._queue)}, {bound}>"
