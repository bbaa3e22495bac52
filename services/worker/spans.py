"""Where a worker's time went for a request, as its trace tells it: in line, reading the prompt, writing the answer."""

from __future__ import annotations

from services.runtime.tracing import Trace
from services.worker.job import Job


def steps(trace: Trace, job: Job, now: float) -> None:
    """The answer is ready to be sent in full, or has ended otherwise."""
    if not trace.recording:
        return
    trace.step("queue", job.arrived_at, now if job.started_at is None else job.started_at)
    if job.started_at is None:
        return
    reading = trace.step("prefill", job.started_at, now if job.first_token_at is None else job.first_token_at)
    reading.attributes = {"weir.prompt_tokens": job.sequence.prompt_tokens, "weir.batch_size": job.batch_size}
    if job.first_token_at is not None:
        writing = trace.step("decode", job.first_token_at, now)
        writing.attributes = {"weir.completion_tokens": job.sequence.completion_tokens}
