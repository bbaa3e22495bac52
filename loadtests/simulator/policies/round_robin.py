"""Round robin over tenants, one request each, with TTL at dequeue: the flow control of today's inference gateways.

It shares requests, not work: a tenant with requests ten times as long gets ten times the service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from loadtests.simulator.job import WAITING, Job
from loadtests.simulator.policy import No, Policy, Refusal
from services.core.outcome import Outcome

FULL = No(Outcome.TENANT_QUEUE_FULL)


class RoundRobin(Policy):
    """A queue per tenant; `queue_size` bounds each, `cancels` stops the work of clients that disconnect."""

    def __init__(self, *, cancels: bool = False, queue_size: int | None = None) -> None:
        if queue_size is not None and queue_size < 1:
            raise ValueError(f"queue_size must be at least 1, got {queue_size}")
        self.cancels = cancels
        self._queues: dict[str, deque[Job]] = {}
        self._turns: deque[str] = deque()
        self._queue_size = queue_size

    def offer(self, now: float, job: Job) -> Refusal | None:
        queue = self._queues.get(job.tenant)
        if queue is None:
            queue = self._queues[job.tenant] = deque()
            self._turns.append(job.tenant)
        if self._queue_size is not None and len(queue) >= self._queue_size:
            return FULL
        queue.append(job)
        return None

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        dropped: list[Job] = []
        while self._turns:
            tenant = self._turns.popleft()
            job = self._head(now, self._queues[tenant], dropped)
            if self._queues[tenant]:
                self._turns.append(tenant)
            else:
                del self._queues[tenant]
            if job is not None:
                return job, dropped
        return None, dropped

    def _head(self, now: float, queue: deque[Job], dropped: list[Job]) -> Job | None:
        while queue:
            job = queue.popleft()
            if self.cancels and job.state != WAITING:
                continue  # its client left; the simulation has counted that
            if now < job.deadline:
                return job
            dropped.append(job)
        return None

    def __repr__(self) -> str:
        return f"<RoundRobin over {len(self._turns)} tenants, {'cancels' if self.cancels else 'never cancels'}>"
