"""What a request used, for its charge: what the engine counted, or an estimate where its answer did not end.

A client that leaves halfway has had its prompt read and some tokens written, which its tenant is charged for. An
answer in one piece shows nothing until its end, so what was written by then is the time it ran over the time per token.
"""

from __future__ import annotations

from typing import NamedTuple

from services.core.estimator import Estimator
from services.router.request import InferenceRequest
from services.router.upstreams.call import End

PREFILL_PER_TOKEN = 0.005
"""Reading a token of the prompt over writing one of the answer, in time: usual for a server that batches."""


class Usage(NamedTuple):
    """Tokens, and the pace that a learned limit listens to (`pace.py`); None where none does."""

    prompt_tokens: float
    completion_tokens: float
    pace_s: float | None


NOTHING = Usage(0.0, 0.0, None)


def used(request: InferenceRequest, estimator: Estimator, now: float) -> Usage:
    """What the request has used by now."""
    if not request.dispatched_at:
        return NOTHING
    end = request.end
    if end is not None and end.prompt_tokens + end.completion_tokens:
        return Usage(end.prompt_tokens, end.completion_tokens, _pace_s(request, end, now))
    return Usage(request.prompt_tokens + request.context_tokens, _written(request, estimator, now), None)


def first_token_at(request: InferenceRequest, end: End, now: float) -> float:
    """When the first token of a plain answer came: as the worker reports it, else by what reading and writing cost."""
    if end.first_token_ms:
        return min(now, request.dispatched_at + end.first_token_ms / 1000)
    reading = PREFILL_PER_TOKEN * end.prompt_tokens + 1.0
    writing = max(0.0, end.completion_tokens - 1.0)
    return request.dispatched_at + (now - request.dispatched_at) * reading / (reading + writing)


def _pace_s(request: InferenceRequest, end: End, now: float) -> float | None:
    """What the answer tells a limit that is being learned; only its own worker knows how to put it."""
    worker = request.worker
    return worker.pace(now - request.sent_at, end.prompt_tokens, end.completion_tokens) if worker is not None else None


def _written(request: InferenceRequest, estimator: Estimator, now: float) -> float:
    """How much of an answer was written that never came to its end."""
    token_s = estimator.token_s(0.5)
    if request.first_output_at or not token_s:
        return float(request.pieces)
    ran_s = now - request.dispatched_at - estimator.prefill_s(request.prompt_tokens + request.context_tokens)
    return min(max(0.0, ran_s / token_s), float(request.granted_tokens))
