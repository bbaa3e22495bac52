"""The worker's spans in a request's trace: queue, prefill and decode."""

from __future__ import annotations

from services.runtime.tracing import Trace
from services.worker.job import Job


def steps(trace: Trace, job: Job, now: float) -> None:
    """Add the spans of a job that has ended or whose answer is complete."""
    if not trace.recording:
        return
    trace.step("queue", job.arrived_at, now if job.started_at is None else job.started_at)
    if job.started_at is None:
        return
    prefill = trace.step("prefill", job.started_at, now if job.first_token_at is None else job.first_token_at)
    prefill.attributes = {"weir.prompt_tokens": job.sequence.prompt_tokens, "weir.batch_size": job.batch_size}
    if job.first_token_at is not None:
        decode = trace.step("decode", job.first_token_at, now)
        decode.attributes = {"weir.completion_tokens": job.sequence.completion_tokens}
