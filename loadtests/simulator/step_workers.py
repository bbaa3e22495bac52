"""Workers with continuous batching: sequences join and leave at the boundaries of steps (Orca, OSDI 2022).

    step = base + per_sequence * sequences in it + per_prefill_token * prompt tokens in it

Prompts are read in chunks, first come first served, at most `chunk_tokens` prompt tokens per step. The step that reads
the end of a prompt gives the first completion token; each later step gives one more. A stopped job leaves at the end of
the current step.

Steps are equal until a sequence joins, leaves or ends, so a *run* of them is one event. A change cuts the run short at
the next boundary.

A sequence's used time is its own part of each step and an equal share of the base, times `slots`, which makes it
comparable with the slots of slot_workers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

from loadtests.scenarios.model import StepWorkers
from loadtests.simulator.job import Job
from loadtests.simulator.workers import Reports, Worker

_EXACT = 1e-9


class StepWorker(Worker):
    """One event per run of equal steps."""

    __slots__ = (
        "_at_boundary",
        "_base_s",
        "_chunk_tokens",
        "_chunks",
        "_decoding",
        "_ending",
        "_joining",
        "_leaving",
        "_number",
        "_per_prefill_token_s",
        "_per_sequence_s",
        "_prefilling",
        "_run_ends_at",
        "_run_from",
        "_run_share_s",
        "_run_steps",
        "_share_s",
        "_step_s",
        "_steps",
    )

    def __init__(self, group: StepWorkers, reports: Reports) -> None:
        super().__init__(group, reports)
        self._base_s = group.base_ms / 1000.0
        self._per_sequence_s = group.per_sequence_ms / 1000.0
        self._per_prefill_token_s = group.per_prefill_token_ms / 1000.0
        self._chunk_tokens = group.chunk_tokens
        self._number = 0
        self._steps = 0
        self._share_s = 0.0  # used by a sequence that decodes since second 0
        self._at_boundary = False
        self._clear()

    def _clear(self) -> None:
        self._joining: list[Job] = []
        self._leaving: list[Job] = []
        self._prefilling: dict[Job, int] = {}  # prompt tokens left, in order of arrival
        self._decoding: dict[Job, None] = {}  # ordered, so that runs repeat
        self._ending: list[tuple[int, int, Job]] = []  # by last step
        self._rest()

    def _rest(self) -> None:
        self._chunks: list[tuple[Job, int]] = []
        self._run_from = 0.0
        self._run_steps = 0
        self._run_share_s = 0.0
        self._step_s = 0.0
        self._run_ends_at = math.inf

    # ---- what the router does

    def give(self, now: float, job: Job) -> None:
        if self.down:
            self.reports.lost(now, job)
        elif self._taken < self.slots:
            self._joining.append(job)
            self._cut_short(now)
        else:
            self.line.append(job)

    @property
    def _taken(self) -> int:
        return len(self._joining) + len(self._prefilling) + len(self._decoding)

    def stop(self, now: float, job: Job) -> None:
        if job in self._decoding or job in self._prefilling:
            self._leaving.append(job)
            self._cut_short(now)
            return
        for place in (self._joining, self.line):
            if job in place:
                place.remove(job)
                self.reports.completed(now, job)

    def slow(self, now: float, factor: float) -> None:
        self.factor = factor
        self._cut_short(now)

    def fail(self, now: float) -> list[Job]:
        self._take_part_of_run(now)
        running = [*self._decoding, *self._prefilling]
        for job in running:
            self._end(now, job)
        lost = sorted(running, key=lambda job: job.ran_from) + self._joining + list(self.line)
        self.line.clear()
        self._clear()
        return lost

    def generated(self, now: float, job: Job) -> int:
        if job not in self._decoding:
            return 0
        steps = self._steps + self._steps_started(now, math.floor)
        return job.worker_tokens - max(0, job.stops_at_step - steps)

    # ---- runs of steps

    def _steps_started(self, now: float, rounded: Callable[[float], int]) -> int:
        if not self._run_steps:
            return 0
        steps = (now - self._run_from) / self._step_s
        steps += -_EXACT if rounded is math.ceil else _EXACT
        return min(self._run_steps, max(0, rounded(steps)))

    def _cut_short(self, now: float) -> None:
        """End the run at the next boundary; of an idle worker, now."""
        if self._at_boundary:
            return
        steps = self._steps_started(now, math.ceil)
        ends_at = max(now, self._run_from + steps * self._step_s) if self._run_steps else now
        if ends_at < self._run_ends_at:
            self._run_steps, self._run_ends_at = steps, ends_at
            self.reports.schedule(ends_at, self._boundary, None)

    def _boundary(self, now: float, _: None) -> None:
        if now != self._run_ends_at:
            return  # that run was cut short
        over = self._take_run(now)
        for job in self._leaving:
            if job in self._decoding or job in self._prefilling:
                self._end(now, job)
                over.append(job)
        self._leaving.clear()
        while self.line and self._taken < self.slots:
            self._joining.append(self.line.popleft())
        self._at_boundary = True
        for job in over:
            self.reports.completed(now, job)
        self._at_boundary = False
        self._run(now)

    def _take_run(self, now: float) -> list[Job]:
        """Account for the run that ends now. Returns the jobs that are complete."""
        steps = self._run_steps
        self._steps += steps
        self._share_s += steps * self._run_share_s
        over = [job for job, tokens in self._chunks if self._read(now, job, steps, tokens)] if steps else []
        ending = self._ending
        while ending and ending[0][0] <= self._steps:
            job = heappop(ending)[2]
            if job in self._decoding:
                over.append(job)
        for job in over:
            self._end(now, job)
        self._rest()
        return over

    def _read(self, now: float, job: Job, steps: int, tokens: int) -> bool:
        """Account for a chunk of the prompt per step. Returns whether the answer is complete (one token)."""
        job.used_s += steps * (self._run_share_s + tokens * self._per_prefill_token_s * self.factor)
        left = self._prefilling[job] = self._prefilling[job] - steps * tokens
        if left > 0:
            return False
        self.reports.first_token(now, job)
        job.share_from_s = self._share_s
        if job.worker_tokens <= 1:
            return True
        del self._prefilling[job]
        self._decoding[job] = None
        job.stops_at_step = self._steps + job.worker_tokens - 1
        self._number += 1
        heappush(self._ending, (job.stops_at_step, self._number, job))
        return False

    def _end(self, now: float, job: Job) -> None:
        job.tokens_done = self.generated(now, job)
        if job in self._decoding:
            del self._decoding[job]
            job.used_s += self._share_s - job.share_from_s
        else:
            del self._prefilling[job]
        job.used_s *= self.slots
        job.ran_until = now

    def _take_part_of_run(self, now: float) -> None:
        if not self._run_steps:
            return
        steps = min(self._run_steps, (now - self._run_from) / self._step_s)
        self._share_s += steps * self._run_share_s
        for job, tokens in self._chunks:
            job.used_s += steps * (self._run_share_s + tokens * self._per_prefill_token_s * self.factor)

    def _run(self, now: float) -> None:
        self._join(now)
        steps = self._plan_chunks()
        sequences = len(self._decoding) + len(self._chunks)
        if not sequences:
            return
        ending = self._ending
        while ending and ending[0][2] not in self._decoding:
            heappop(ending)
        if ending:
            left = ending[0][0] - self._steps
            steps = min(steps, left) if self._chunks else left
        tokens = sum(tokens for _, tokens in self._chunks)
        self._run_share_s = (self._base_s / sequences + self._per_sequence_s) * self.factor
        self._step_s = self._run_share_s * sequences + tokens * self._per_prefill_token_s * self.factor
        self._run_from, self._run_steps = now, steps
        self._run_ends_at = now + steps * self._step_s
        self.reports.schedule(self._run_ends_at, self._boundary, None)

    def _join(self, now: float) -> None:
        for job in self._joining:
            self._prefilling[job] = job.worker_prompt
            job.ran_from = now
            self.reports.began(now, job)
        self._joining.clear()

    def _plan_chunks(self) -> int:
        """Choose the chunks of each step of the next run. Returns for how many steps they stay the same."""
        room = self._chunk_tokens
        steps = 1
        for job, left in self._prefilling.items():
            if left >= room == self._chunk_tokens:
                steps = left // room
            tokens = min(left, room)
            self._chunks.append((job, tokens))
            room -= tokens
            if not room:
                break
        return steps
