"""Workers with independent slots: service time = prompt / prefill rate + tokens * time per token, with jitter.

This is the M/G/c queue of queueing theory. The jitter keeps equal requests out of lockstep.
"""

from __future__ import annotations

from random import Random

from loadtests.scenarios.model import SlotWorkers
from loadtests.simulator.job import Job
from loadtests.simulator.workers import Reports, Worker

_EXACT = 1e-9  # tokens; a token due now counts in spite of rounding


class SlotWorker(Worker):
    """Two events per job: first token and end."""

    __slots__ = ("_chance", "_free", "_jitter", "_prefill_s_per_token", "_running", "_s_per_token")

    def __init__(self, group: SlotWorkers, reports: Reports, chance: Random) -> None:
        super().__init__(group, reports)
        self._prefill_s_per_token = 1.0 / group.prefill_tokens_per_s
        self._s_per_token = group.s_per_token
        self._jitter = group.jitter
        self._chance = chance.random
        self._free = group.slots
        self._running: dict[Job, None] = {}  # ordered, so that runs repeat

    def give(self, now: float, job: Job) -> None:
        if self.down:
            self.reports.lost(now, job)
        elif self._free:
            self._free -= 1
            self._begin(now, job)
        else:
            self.line.append(job)

    def _begin(self, now: float, job: Job) -> None:
        stretch = self.factor * (1.0 + self._jitter * (2.0 * self._chance() - 1.0))
        job.ran_from = now
        job.pace_s = self._s_per_token * stretch
        job.read_at = now + job.worker_prompt * self._prefill_s_per_token * stretch
        self._running[job] = None
        self.reports.began(now, job)
        self.reports.schedule(job.read_at + job.pace_s, self._first_token, job)
        self.reports.schedule(job.read_at + job.worker_tokens * job.pace_s, self._done, job)

    def _first_token(self, now: float, job: Job) -> None:
        if job in self._running:
            self.reports.first_token(now, job)

    def _done(self, now: float, job: Job) -> None:
        if job in self._running:
            self._release(now, job)
            self.reports.completed(now, job)

    def stop(self, now: float, job: Job) -> None:
        if job in self._running:
            self._release(now, job)
        elif job in self.line:
            self.line.remove(job)
        else:
            return
        self.reports.completed(now, job)

    def _release(self, now: float, job: Job) -> None:
        self._end(now, job)
        if self.line:
            self._begin(now, self.line.popleft())
        else:
            self._free += 1

    def _end(self, now: float, job: Job) -> None:
        done = now >= job.read_at and now - job.read_at >= job.worker_tokens * job.pace_s
        job.tokens_done = job.worker_tokens if done else self.generated(now, job)
        del self._running[job]
        job.ran_until = now
        job.used_s = now - job.ran_from

    def fail(self, now: float) -> list[Job]:
        lost = list(self._running)
        for job in lost:
            self._end(now, job)
        lost += self.line
        self.line.clear()
        self._free = self.slots
        return lost

    def generated(self, now: float, job: Job) -> int:
        if job not in self._running or now < job.read_at:
            return 0
        return min(job.worker_tokens, int((now - job.read_at) / job.pace_s + _EXACT))
