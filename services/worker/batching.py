"""The engine loop: admit sequences, compute one step, deliver its tokens (docs/architecture/mechanisms/batching.md).

`core.batcher` decides which requests start and the engine computes. This module owns the clock and the timers. A
request ends once (`endings.py`), which frees its queue place, slot, memory, timer and id at once. The token that the
running step still computes for it is discarded.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from services.contracts.generate import GenerateRequest
from services.core.batcher import BatchFormer, Fire, Waiting
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused, WeirError, place_of
from services.runtime.log import Log
from services.worker.endings import Endings
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import EngineDied, EngineExecutor
from services.worker.engine_restart import restart_engine
from services.worker.job import Job
from services.worker.lending import Lending, Loan
from services.worker.metrics import WorkerMetrics
from services.worker.pace import EnginePace
from services.worker.stops import StopFilter
from services.worker.stream import AnswerStream
from services.worker.ticket import Ticket

HINT_JITTER = 0.2  # requests rejected at the same time should not retry at the same time
NO_ENGINE = "this worker's engine failed; send the request to another worker"
ENGINE_DIED = "engine_died"  # the router treats this code like a lost worker, not like an ordinary failure


class EngineLoop:
    """The requests of one engine, on one event loop."""

    def __init__(
        self,
        executor: EngineExecutor,
        scheduler: BatchFormer[Job],
        *,
        metrics: WorkerMetrics,
        log: Log,
        chance: random.Random,
        stream_buffer_tokens: int,
        stall_s: float,
        lending: Lending | None = None,
    ) -> None:
        self.executor = executor
        self.pace = EnginePace()
        self.draining = False
        self.replacing = False
        self.lending = Lending() if lending is None else lending
        self._scheduler = scheduler
        self._metrics = metrics
        self._log = log
        self._chance = chance
        self._stream_buffer_tokens = stream_buffer_tokens
        self._stall_s = stall_s
        self._endings = Endings(self.pace, metrics, stream_buffer_tokens)
        self._jobs: dict[str, Job] = {}
        self._running: dict[Sequence, Job] = {}
        self._reserved_tokens = 0  # by running sequences
        self._preparing = 0  # admitted but not queued: their prompts are being tokenized
        self._woken = asyncio.Event()
        executor.on_death = self._woken.set  # an engine that dies while idle is replaced at once
        self._task: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None  # ends the requests that still run when a drain's grace is over

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests queued for a slot."""
        return len(self._scheduler) + self._preparing

    @property
    def queue_size(self) -> int:
        """How many requests may wait while every slot is taken."""
        return self._scheduler.queue_size

    @property
    def free_tokens(self) -> int:
        """KV tokens that no running sequence has reserved. Negative after the engine has shrunk."""
        return self.executor.kv_tokens - self._reserved_tokens

    @property
    def alive(self) -> bool:
        """The loop runs and has an engine."""
        return self._task is not None and not self._task.done() and not self.replacing

    # Requests

    async def submit(self, request: GenerateRequest) -> Job:
        """Queue a request. Raises Refused if there is no place, BadInput if the request cannot run here."""
        arrived_at = _now()
        if request.lease is not None:
            self.lending.receive(request.lease)
        self._check_capacity(request)
        loan = self.lending.borrow(request.lease)
        if loan is None:
            raise self._full("every slot is in use, or lent to a router that has not used it yet", "no_lease")
        try:
            sequence = await self._prepare(request)
        except BaseException:
            self.lending.give_back(loan)
            self.lending.push_rest(loan)  # the request ends with a status, which carries no grant
            raise
        return self._enqueue(request, sequence, arrived_at, loan)

    async def _prepare(self, request: GenerateRequest) -> Sequence:
        self._preparing += 1
        try:
            sequence = await self.executor.prepare(request)
        except EngineDied:
            raise Refused(Outcome.NO_CAPACITY, NO_ENGINE) from None
        finally:
            self._preparing -= 1
        try:
            self._check_capacity(request)  # again: capacity may have changed while the prompt was tokenized
        except WeirError:
            self.executor.drop(sequence)
            raise
        return sequence

    def _enqueue(self, request: GenerateRequest, sequence: Sequence, arrived_at: float, loan: Loan) -> Job:
        deadline = arrived_at + request.deadline_ms / 1000
        sequence.deadline = deadline
        job = Job(
            sequence=sequence,
            ticket=Ticket(request.id, arrived_at),
            stream=AnswerStream(
                capacity_tokens=self._stream_buffer_tokens if request.stream else sequence.max_tokens + 1,
                whole=not request.stream,
            ),
            stops=StopFilter(request.stop),
            deadline=deadline,
            loan=loan,
        )
        job.ticket.hold(partial(self.lending.give_back, loan))  # first, so that it is released last: the slot is free
        self._jobs[job.id] = job
        timer = asyncio.get_running_loop().call_at(deadline, self._endings.deadline_passed, job)
        job.ticket.hold(partial(self._forget, job, timer))
        taken = self._scheduler.offer(self._waiting(job), self.running)
        assert taken, f"there was a place for {job.id}, and is none: {self!r}"
        self._log.debug("job queued", id=job.id, tenant=request.tenant, router=loan.router)
        self._woken.set()
        return job

    def _waiting(self, job: Job) -> Waiting[Job]:
        reading_s = job.sequence.unread_tokens * self.executor.expected.prefill_ms_per_token / 1000
        return Waiting(
            job.id, job.arrived_at, job.deadline, job,
            service_s=self.pace.service_s or 0.0, ready_s=reading_s, tokens=job.sequence.reserved_tokens,
        )  # fmt: skip

    def abandon(self, job: Job) -> None:
        """The client has disconnected. No effect on a job that has ended."""
        self._endings.drop(job, Outcome.CLIENT_GONE, "the client disconnected")

    def cancel(self, id: str) -> bool:
        """Abandon a request by its id. False if no such request is queued or running."""
        job = self._jobs.get(id)
        if job is None:
            return False
        self._endings.drop(job, Outcome.CLIENT_GONE, "the request was cancelled")
        return True

    def predicted_wait_s(self) -> float:
        """How long a request submitted now would wait for a slot, in seconds."""
        if self.running + self.waiting < self._scheduler.slots:
            return 0.0
        now = _now()
        oldest_s = max((job.held_s(now) for job in self._running.values()), default=0.0)
        return self.pace.predicted_wait_s(waiting=self.waiting, slots=self._scheduler.slots, oldest_s=oldest_s)

    def _check_capacity(self, request: GenerateRequest) -> None:
        if self.draining:
            raise Refused(Outcome.DRAINING, "this worker is shutting down; send the request to another worker")
        self.check_engine()
        if request.id in self._jobs:
            raise BadInput(
                f"id: a request {request.id!r} is already queued or running", "id", status=409, code="duplicate_id"
            )
        if self._scheduler.full(self.running + self._preparing):
            queued = f"all {self._scheduler.slots} slots are in use and {self.waiting} requests are queued"
            raise self._full(queued, "worker_queue_full")

    def _full(self, message: str, reason: str) -> Refused:
        wait_ms = self.predicted_wait_s() * 1000
        return Refused(
            Outcome.YIELD, message, reason=reason, predicted_wait_ms=wait_ms, queue_depth=self.waiting,
            retry_hint_ms=wait_ms * (1 + self._chance.uniform(0, HINT_JITTER)),
        )  # fmt: skip

    def check_engine(self) -> None:
        """Raises Refused while there is no engine: loading, being replaced, or its loop has stopped."""
        if self._task is None or self.replacing:
            raise Refused(Outcome.NO_CAPACITY, "this worker's engine is starting; send the request to another worker")
        if self._task.done():
            raise Refused(Outcome.NO_CAPACITY, "this worker's engine has stopped; its log says why")

    # The loop

    async def start(self) -> None:
        """Load the engine and start the loop. Raises EngineUnusable."""
        await self.executor.start()
        self._log.info("the engine is ready", engine=self.executor.description)
        self._follow_engine()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="engine-loop")
        self._task.add_done_callback(self._stopped)

    async def _run(self) -> None:
        while True:
            if self.executor.died and not self._running:  # with running sequences, the step raises EngineDied
                await self._replace_engine(self.executor.died)
                continue
            decision = self._scheduler.decide(_now(), self.running, self.free_tokens)
            for waiting in decision.expired:
                self._endings.deadline_passed(waiting.item)
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
                self.executor.admit(job.sequence)
            except Exception as error:
                self._engine_failed("admit", error, [job])
                continue
            job.started_at = now
            self._running[job.sequence] = job
            self._reserved_tokens += job.sequence.reserved_tokens
            job.ticket.hold(partial(self._release_slot, job.sequence))
            assert self.running <= self._scheduler.slots, f"{job.id} has no slot: {self!r}"
            self._log.debug("job started", id=job.id, running=self.running)
            self._metrics.queue_delay_seconds.observe(now - job.arrived_at)
            self._metrics.prompt_tokens.inc(job.sequence.prompt_tokens)
        for job in jobs:
            job.batch_size = self.running

    def _forget(self, job: Job, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        del self._jobs[job.id]
        self._scheduler.discard(job.id)
        if job.started_at is None:
            self.executor.drop(job.sequence)  # prepared, but never admitted
        self._log.debug("job ended", id=job.id)

    def _release_slot(self, sequence: Sequence) -> None:
        del self._running[sequence]
        left = self._reserved_tokens = self._reserved_tokens - sequence.reserved_tokens
        self.executor.drop(sequence)
        assert left > 0 if self._running else left == 0, f"{left} tokens are reserved after {sequence.id}: {self!r}"

    async def _step(self) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                step = await self.executor.step()
        except TimeoutError:
            await self._replace_engine(f"the engine has not finished a step for {self._stall_s:g} s")
        except EngineDied as error:
            await self._replace_engine(str(error))
        except Exception as error:
            self._engine_failed("step", error, list(self._running.values()))
        else:
            self._deliver(step)

    async def _rest(self, until: float | None) -> None:
        """Sleep until a request arrives or the scheduler's time `until` is reached."""
        self.executor.rest()
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
        self._metrics.stepped(step)
        for sequence, text in step.tokens:
            if (job := self._running.get(sequence)) is not None:
                self._deliver_token(job, text, now)
        for sequence, reason in step.finished:
            if (job := self._running.get(sequence)) is not None:
                self._endings.finish(job, reason, now)
        for sequence, why in step.lost:
            if (job := self._running.get(sequence)) is not None:
                self._endings.drop(
                    job, Outcome.NO_CAPACITY, f"this worker could not continue the request: {why}", waste="lost"
                )
        if self.executor.slots != self._scheduler.slots or step.lost:
            self._follow_engine()

    def _deliver_token(self, job: Job, text: str, now: float) -> None:
        if now >= job.deadline:
            self._endings.deadline_passed(job)
            return
        if job.first_token_at is None:
            job.first_token_at = now
        shown = job.stops.feed(text)
        if shown and not job.stream.put(shown):
            self._endings.stalled(job)
        elif job.stops.stopped:
            self._endings.finish(job, "stop", now)

    # Engine failures

    def _follow_engine(self) -> None:
        """Adopt the engine's slots, and reject queued requests that no longer fit into its memory."""
        if self.executor.slots != self._scheduler.slots:
            self._log.warning(
                "the engine's number of slots changed", slots=self.executor.slots, before=self._scheduler.slots
            )
            self._scheduler.resize(self.executor.slots)
        self.lending.resize(0 if self.draining else self.executor.slots)
        for job in list(self._jobs.values()):
            if job.started_at is None and job.sequence.reserved_tokens > self.executor.kv_tokens:
                self._endings.drop(
                    job, Outcome.NO_CAPACITY, "this worker's memory has shrunk, and the request does not fit"
                )

    def _engine_failed(self, doing: str, error: Exception, jobs: list[Job]) -> None:
        self._log.error("the engine failed", doing=doing, requests=len(jobs), traceback=place_of(error))
        for job in jobs:
            self._endings.drop(job, Outcome.INTERNAL, f"the engine failed to {doing}; the worker's log says why")

    async def _replace_engine(self, why: str) -> None:
        """Fail the running requests, reject the queued ones, and restart the engine for as long as that takes."""
        self.replacing = True
        self.lending.resize(0)
        self._metrics.engine_restarts.inc()
        self._log.error("replacing the engine", why=why, requests=self.running, waiting=len(self._scheduler))
        for job in list(self._running.values()):
            self._endings.drop(
                job, Outcome.INTERNAL, f"the engine failed while it processed this request: {why}", code=ENGINE_DIED
            )
        for waiting in self._scheduler.flush():
            self._endings.drop(waiting.item, Outcome.NO_CAPACITY, NO_ENGINE)
        await restart_engine(self.executor, self._log, self._chance)
        self.replacing = False
        self._follow_engine()

    # Shutdown

    def drain(self, grace_s: float) -> None:
        """Accept no requests, reject the queued ones, and give the running ones `grace_s` seconds to finish."""
        self.draining = True
        self.lending.leave()
        for waiting in self._scheduler.flush():
            self._endings.drop(
                waiting.item, Outcome.DRAINING, "this worker is shutting down; the request had not started"
            )
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(grace_s, self._drop_all, "this worker shut down before the answer's end")

    async def stop(self) -> None:
        """End the remaining requests, the loop and the engine."""
        self.draining = True
        self._drop_all("this worker has shut down")
        self.lending.stop()
        if self._grace is not None:
            self._grace.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.executor.stop()

    def _drop_all(self, message: str) -> None:
        for job in list(self._jobs.values()):
            self._endings.drop(job, Outcome.DRAINING, message)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """The loop's task ended. If it failed, fail every request, since nothing would serve them."""
        if task.cancelled():
            return
        error = task.exception()
        self._log.error("the engine loop stopped", traceback="" if error is None else place_of(error))
        self.lending.resize(0)
        for job in list(self._jobs.values()):
            self._endings.drop(job, Outcome.INTERNAL, "the worker's engine loop stopped; its log says why")

    def __repr__(self) -> str:
        state = "draining" if self.draining else "alive" if self.alive else "stopped"
        return f"<EngineLoop {state}, {self.running}/{self._scheduler.slots} running, {self.waiting} waiting>"


def _now() -> float:
    return asyncio.get_running_loop().time()
