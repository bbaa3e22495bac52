"""The loop that turns an engine: decide who joins, compute a step, wait it out, deliver.

One task per engine. The decisions are made elsewhere and without waiting (`core.batcher` says who starts, the engine
what comes out); this file owns the clock, the timers and the endings.

A request is a `Job` whose ticket is finished once: served, its deadline passed, its client gone, its reader stalled,
the worker leaving, the engine failed. Whoever comes first ends it, and the ticket gives back its place in the line,
its slot, its timer and its id. The slot is free from that moment: no token is computed for it again, and one that was
being computed is thrown away. So leaving costs at most the step that runs.
"""

from __future__ import annotations

import asyncio
import math
import random
from functools import partial

from services.contracts.generate import GenerateRequest
from services.core.batcher import BatchFormer, Fire, Waiting
from services.core.outcome import Outcome
from services.core.ticket import Ticket
from services.runtime.errors import BadInput, Refused
from services.runtime.log import Log
from services.worker.engine import Engine, FinishReason, Sequence, Step
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.pace import Pace
from services.worker.stops import StopFilter
from services.worker.stream import Dropped, Stream

MAX_LAG_S = 0.05  # timers fire late; the next steps make that up, but a longer stall is not replayed
HINT_JITTER = 0.2  # those refused together should not return together


class EngineLoop:
    """The requests of one engine, on one event loop. Nothing but `run` and `Stream.take` ever waits."""

    def __init__(
        self,
        engine: Engine,
        former: BatchFormer[Job],
        *,
        metrics: WorkerMetrics,
        log: Log,
        chance: random.Random,
        stream_buffer_tokens: int,
    ) -> None:
        if former.slots != engine.slots:
            raise ValueError(f"the former fills {former.slots} slots and the engine has {engine.slots}")
        self.engine = engine
        self.pace = Pace()
        self.draining = False
        self._former = former
        self._metrics = metrics
        self._log = log
        self._chance = chance
        self._stream_buffer_tokens = stream_buffer_tokens
        self._jobs: dict[str, Job] = {}
        self._running: dict[Sequence, Job] = {}
        self._step_due_at = -math.inf  # when the last step was over, or should have been
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in line for one."""
        return len(self._former)

    @property
    def queue_size(self) -> int:
        """How many may wait while every slot is taken."""
        return self._former.queue_size

    @property
    def alive(self) -> bool:
        """The loop turns."""
        return self._task is not None and not self._task.done()

    # Requests

    def submit(self, request: GenerateRequest) -> Job:
        """Let a request into the line. Raises Refused where there is no place, BadInput for one that cannot run."""
        now = _now()
        self._check_place(request, now)
        job = Job(
            sequence=self.engine.prepare(request),
            ticket=Ticket(request.id, now),
            stream=Stream(
                capacity_tokens=self._stream_buffer_tokens if request.stream else request.max_tokens + 1,
                whole=not request.stream,
            ),
            stops=StopFilter(request.stop),
            deadline=now + request.deadline_ms / 1000,
        )
        self._jobs[job.id] = job
        timer = asyncio.get_running_loop().call_at(job.deadline, self._deadline_passed, job)
        self._former.offer(Waiting(job.id, now, job.deadline, job), self.running)
        job.ticket.hold(partial(self._forget, job.id, timer))
        self._woken.set()
        return job

    def abandon(self, job: Job) -> None:
        """Nobody waits for this one any more. One that has ended stays as it ended."""
        self._drop(job, Outcome.CLIENT_GONE, "the client went away")

    def cancel(self, id: str) -> bool:
        """Abandon by id. False when no such request waits or runs here: it is over, or never came."""
        job = self._jobs.get(id)
        if job is None:
            return False
        self._drop(job, Outcome.CLIENT_GONE, "the request was cancelled")
        return True

    def predicted_wait_s(self) -> float:
        """What a newcomer would wait for a slot, were it let in now."""
        if self.running + self.waiting < self.engine.slots:
            return 0.0
        now = _now()
        oldest_s = max((job.held_s(now) for job in self._running.values()), default=0.0)
        return self.pace.predicted_wait_s(waiting=self.waiting, slots=self.engine.slots, oldest_s=oldest_s)

    def _check_place(self, request: GenerateRequest, now: float) -> None:
        """Everything that refuses a request before a byte of its prompt is looked at."""
        if self.draining:
            raise Refused(Outcome.DRAINING, "this worker is shutting down; send the request to another")
        if not self.alive:
            raise Refused(Outcome.NO_CAPACITY, "this worker's engine has stopped; its log says why")
        if request.id in self._jobs:
            raise BadInput(f"id: a request {request.id!r} is already here", "id", status=409, code="duplicate_id")
        if self._former.full(self.running):
            wait_ms = self.predicted_wait_s() * 1000
            raise Refused(
                Outcome.YIELD,
                f"all {self.engine.slots} slots are taken and {self.waiting} requests wait",
                reason="worker_queue_full",
                predicted_wait_ms=wait_ms,
                retry_hint_ms=wait_ms * (1 + self._chance.uniform(0, HINT_JITTER)),
                queue_depth=self.waiting,
            )

    # The loop

    def start(self) -> None:
        """Begin to turn. Needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="engine-loop")
        self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        while True:
            decision = self._former.decide(_now(), self.running)
            for waiting in decision.expired:
                self._deadline_passed(waiting.item)
            if isinstance(decision, Fire):
                self._start_batch([waiting.item for waiting in decision.admit])
            if self._running:
                await self._step()
            elif not isinstance(decision, Fire):
                await self._rest(decision.until)

    def _start_batch(self, jobs: list[Job]) -> None:
        now = _now()
        for job in jobs:
            try:
                self.engine.admit(job.sequence)
            except Exception as error:
                self._engine_failed("admit", error, [job])
                continue
            job.started_at = now
            self._running[job.sequence] = job
            job.ticket.hold(partial(self._leave_slot, job.sequence))
            self._metrics.queue_delay_seconds.observe(now - job.arrived_at)
            self._metrics.prompt_tokens.inc(job.sequence.prompt_tokens)
        for job in jobs:
            job.batch_size = self.running

    def _forget(self, id: str, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._former.discard(id)
        del self._jobs[id]

    def _leave_slot(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self.engine.drop(sequence)

    async def _step(self) -> None:
        """One step for all: computed at once, delivered when it would be over."""
        try:
            step = self.engine.step()
        except Exception as error:
            self._engine_failed("step", error, list(self._running.values()))
            return
        began = _now()
        if began - self._step_due_at <= MAX_LAG_S:
            began = self._step_due_at
        self._step_due_at = began + step.duration_s
        await asyncio.sleep(max(0.0, self._step_due_at - _now()))
        self._deliver(step)

    async def _rest(self, until: float | None) -> None:
        """Until someone arrives, or the former wants waking. Costs nothing while it lasts."""
        self._step_due_at = -math.inf
        self._woken.clear()
        timer = None if until is None else asyncio.get_running_loop().call_at(until, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _deliver(self, step: Step) -> None:
        now = _now()
        self.pace.stepped(step.duration_s)
        self._metrics.step_seconds.observe(step.duration_s)
        self._metrics.batch_size.observe(step.batch_size)
        self._metrics.completion_tokens.inc(len(step.tokens))
        for sequence, text in step.tokens:
            if (job := self._running.get(sequence)) is not None:
                self._deliver_token(job, text, now)
        for sequence, reason in step.finished:
            if (job := self._running.get(sequence)) is not None:
                self._finish(job, reason, now)

    def _deliver_token(self, job: Job, text: str, now: float) -> None:
        if now >= job.deadline:
            self._deadline_passed(job)
            return
        if job.first_token_at is None:
            job.first_token_at = now
        shown = job.stops.feed(text)
        if shown and not job.stream.put(shown):
            self._stalled(job)
        elif job.stops.stopped:
            self._finish(job, "stop", now)

    # Endings

    def _finish(self, job: Job, reason: FinishReason, now: float) -> None:
        held_back = job.stops.flush()
        if held_back and not job.stream.put(held_back):
            self._stalled(job)
        elif job.ticket.finish(Outcome.SERVED):
            self.pace.served(job.held_s(now))
            self._metrics.requests[Outcome.SERVED].inc()
            job.stream.end(job.done(reason, now))

    def _drop(self, job: Job, outcome: Outcome, message: str, *, waste: str | None = None) -> None:
        """End a request without an answer; `waste` names why its slot time was in vain, by default the outcome."""
        if not job.ticket.finish(outcome):
            return
        held_s = job.held_s(_now())
        self._metrics.requests[outcome].inc()
        if job.started_at is not None:
            self.pace.served(held_s)
            self._metrics.wasted_seconds[waste or outcome.value].inc(held_s)
        job.stream.end(Dropped(outcome, message))

    def _deadline_passed(self, job: Job) -> None:
        if job.started_at is None:
            self._drop(job, Outcome.DEADLINE_EXPIRED, "the deadline passed while the request waited for a slot")
        else:
            done = f"{job.sequence.completion_tokens} tokens had been computed"
            self._drop(job, Outcome.DEADLINE_EXCEEDED, f"the deadline passed while the request ran; {done}")

    def _stalled(self, job: Job) -> None:
        behind = f"the reader is {self._stream_buffer_tokens} tokens behind"
        self._drop(job, Outcome.CLIENT_GONE, f"{behind}; read faster, or ask with stream: false", waste="write_stall")

    def _engine_failed(self, doing: str, error: Exception, jobs: list[Job]) -> None:
        """The engine's fault ends those it concerns, and nobody else."""
        self._log.error("the engine failed", doing=doing, error=type(error).__name__, requests=len(jobs))
        for job in jobs:
            self._drop(job, Outcome.INTERNAL, f"the engine failed to {doing}; the worker's log says why")

    # Leaving

    def drain(self, grace_s: float) -> None:
        """Take nobody in, refuse those in line, and give those that run `grace_s` to finish."""
        self.draining = True
        self._drop_waiting("this worker is shutting down; the request had not started")
        asyncio.get_running_loop().call_later(grace_s, self._drop_all, "this worker shut down before the answer's end")

    async def stop(self) -> None:
        """End whatever is left, and the loop."""
        self.draining = True
        self._drop_all("this worker has shut down")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _drop_waiting(self, message: str) -> None:
        for waiting in self._former.flush():
            self._drop(waiting.item, Outcome.DRAINING, message)

    def _drop_all(self, message: str) -> None:
        for job in list(self._jobs.values()):
            self._drop(job, Outcome.DRAINING, message)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """The loop ended. By `stop` is as it should be; by a fault, nobody may be left waiting for it."""
        if task.cancelled():
            return
        error = task.exception()
        self._log.error("the engine loop stopped", error=type(error).__name__)
        for job in list(self._jobs.values()):
            self._drop(job, Outcome.INTERNAL, "the worker's engine loop stopped; its log says why")

    def __repr__(self) -> str:
        state = "draining" if self.draining else "alive" if self.alive else "stopped"
        return f"<EngineLoop {state}, {self.running}/{self.engine.slots} running, {self.waiting} waiting>"


def _now() -> float:
    return asyncio.get_running_loop().time()
