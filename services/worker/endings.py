"""How a request ends at the worker: its ticket is finished once, and pace, metrics and stream learn of it."""

from __future__ import annotations

import asyncio

from services.core.outcome import Outcome
from services.worker.engine import FinishReason
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.pace import EnginePace
from services.worker.stream import Dropped


class Endings:
    """The ends of all requests of one engine. None has an effect on a job that has ended."""

    def __init__(self, pace: EnginePace, metrics: WorkerMetrics, stream_buffer_tokens: int) -> None:
        self._pace = pace
        self._metrics = metrics
        self._stream_buffer_tokens = stream_buffer_tokens

    def finish(self, job: Job, reason: FinishReason, now: float) -> None:
        """The answer is complete."""
        held_back = job.stops.flush()
        if held_back and not job.stream.put(held_back):
            self.stalled(job)
        elif job.ticket.finish(Outcome.SERVED):
            self._pace.served(job.held_s(now))
            self._metrics.requests[Outcome.SERVED].inc()
            job.stream.end(job.done(reason, now))

    def drop(self, job: Job, outcome: Outcome, message: str, *, waste: str = "", code: str = "") -> None:
        """End a request without an answer. `waste` labels its wasted slot time; the default is the outcome."""
        if not job.ticket.finish(outcome):
            return
        self._metrics.requests[outcome].inc()
        if job.started_at is not None:
            held_s = job.held_s(_now())
            self._pace.served(held_s)
            self._metrics.wasted(waste or outcome.value, held_s, job.sequence.completion_tokens)
        job.stream.end(Dropped(outcome, message, code))

    def deadline_passed(self, job: Job) -> None:
        """Its deadline has passed, or cannot be met any more."""
        if job.started_at is not None:
            done = f"{job.sequence.completion_tokens} tokens had been computed"
            self.drop(job, Outcome.DEADLINE_EXCEEDED, f"the deadline passed while the request ran; {done}")
        elif _now() < job.deadline:
            why = f"{job.sequence.unread_tokens} tokens of the prompt cannot be processed in the remaining time"
            self.drop(job, Outcome.DEADLINE_EXPIRED, why)
        else:
            self.drop(job, Outcome.DEADLINE_EXPIRED, "the deadline passed while the request waited for a slot")

    def stalled(self, job: Job) -> None:
        """Its client reads too slowly."""
        behind = f"the client is more than {self._stream_buffer_tokens} tokens behind"
        self.drop(job, Outcome.CLIENT_GONE, f"{behind}; read faster, or set stream: false", waste="write_stall")


def _now() -> float:
    return asyncio.get_running_loop().time()
