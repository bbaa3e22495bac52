"""Virtual Token Counter (Sheng et al., OSDI 2024): serve the tenant with the least service so far.

A counter per tenant grows by service / weight: `w_p` per prompt token when a job starts, `w_q` per completion token,
charged before a choice, every 5 ms at most. An idle tenant that returns is lifted to the least counter of the waiting
tenants (if there are none, of the last tenant that left the queue), so idle tenants save no credit.

The paper's bound: the service of two backlogged tenants differs by at most 2 * max(w_p * L_input, w_q * M), where M is
the number of tokens in the running batch. Unlike the paper's, this one has TTL at dequeue and cancellation, as
`round_robin_ttl_cancel` has, so that they differ in order alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from loadtests.simulator.job import WAITING, Job
from loadtests.simulator.policy import Policy, Refusal
from services.core.outcome import Outcome

CHARGE_EVERY_S = 0.005
"""About a token's time. Charging before every choice would be slow with many slots."""


class Vtc(Policy):
    """A counter per tenant, and a heap of the waiting tenants by counter."""

    cancels = True

    def __init__(self, weights: Mapping[str, float], *, prompt_weight: float, completion_weight: float) -> None:
        self._weights = weights
        self._prompt_weight = prompt_weight
        self._completion_weight = completion_weight
        self._counters: dict[str, float] = {}
        self._queues: dict[str, deque[Job]] = {}
        self._heap: list[tuple[float, str]] = []  # stale counters are too low, so they come early
        self._in_heap: set[str] = set()
        self._running: dict[Job, int] = {}  # completion tokens charged
        self._charged_at = -CHARGE_EVERY_S
        self._last_left = 0.0

    def offer(self, now: float, job: Job) -> Refusal | None:
        queue = self._queues.get(job.tenant)
        if queue is None:
            queue = self._queues[job.tenant] = deque()
            self._lift(job.tenant)
        queue.append(job)
        return None

    def _lift(self, tenant: str) -> None:
        lowest = self._refresh()
        floor = self._last_left if lowest is None else lowest
        counter = self._counters[tenant] = max(self._counters.get(tenant, 0.0), floor)
        if tenant not in self._in_heap:
            self._in_heap.add(tenant)
            heappush(self._heap, (counter, tenant))

    def _refresh(self) -> float | None:
        """Make the head of the heap current. Returns its counter, None for an empty heap."""
        heap, counters = self._heap, self._counters
        while heap:
            counter, tenant = heap[0]
            if not self._queues.get(tenant):
                heappop(heap)
                self._in_heap.discard(tenant)
            elif counter < counters[tenant]:
                heapreplace(heap, (counters[tenant], tenant))
            else:
                return counter
        return None

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        dropped: list[Job] = []
        self._charge_running(now)
        while self._refresh() is not None:
            tenant = self._heap[0][1]
            job = self._head(now, self._queues[tenant], dropped)
            if not self._queues[tenant]:
                del self._queues[tenant]
                self._last_left = self._counters[tenant]
            if job is not None:
                self._charge(tenant, self._prompt_weight * (job.prompt_tokens + job.context_tokens))
                self._running[job] = 0
                return job, dropped
        return None, dropped

    def _head(self, now: float, queue: deque[Job], dropped: list[Job]) -> Job | None:
        while queue:
            job = queue.popleft()
            if job.state != WAITING:
                continue  # its client left; the simulation has counted that
            if now < job.deadline:
                return job
            dropped.append(job)
        return None

    def _charge_running(self, now: float) -> None:
        if now < self._charged_at + CHARGE_EVERY_S:
            return
        self._charged_at = now
        for job, charged in self._running.items():
            generated = job.generated(now)
            if generated > charged:
                self._running[job] = generated
                self._charge(job.tenant, self._completion_weight * (generated - charged))

    def _charge(self, tenant: str, cost: float) -> None:
        self._counters[tenant] += cost / self._weights.get(tenant, 1.0)

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        charged = self._running.pop(job)
        self._charge(job.tenant, self._completion_weight * (completion_tokens - charged))

    def __repr__(self) -> str:
        return f"<Vtc: {len(self._queues)} of {len(self._counters)} tenants wait>"
