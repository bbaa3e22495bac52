"""Tokens that a request is charged: the engine's counts, or an estimate for an answer without an end.

A client that disconnects is charged for the prompt and the tokens generated so far. A plain answer shows nothing until
its end, so its tokens are estimated as running time over time per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.core.estimator import Estimator
from services.router.request import InferenceRequest
from services.router.upstreams.call import End

PREFILL_PER_TOKEN = 0.005
"""Time to read a prompt token over the time to generate one: typical for a server that batches."""


class ChargedTokens(NamedTuple):
    """Tokens, and the pace for a learned limit (`pace.py`); None where there is none."""

    prompt_tokens: float
    completion_tokens: float
    pace_s: float | None


NOTHING = ChargedTokens(0.0, 0.0, None)


def used(request: InferenceRequest, estimator: Callable[[InferenceRequest], Estimator], now: float) -> ChargedTokens:
    """`estimator` gives that of the request's pool."""
    if not request.dispatched_at:
        return NOTHING
    end = request.end
    if end is not None and end.prompt_tokens + end.completion_tokens:
        return ChargedTokens(end.prompt_tokens, end.completion_tokens, _pace_s(request, end, now))
    written = _written(request, estimator(request), now)
    return ChargedTokens(request.prompt_tokens + request.context_tokens, written, None)


def first_token_at(request: InferenceRequest, end: End, now: float) -> float:
    """When a plain answer's first token came: as the worker reports it, else estimated from the token counts."""
    if end.first_token_ms:
        return min(now, request.dispatched_at + end.first_token_ms / 1000)
    reading = PREFILL_PER_TOKEN * end.prompt_tokens + 1.0
    writing = max(0.0, end.completion_tokens - 1.0)
    began = min(now, max(request.dispatched_at, request.slot_at))
    return began + (now - began) * reading / (reading + writing)


def _pace_s(request: InferenceRequest, end: End, now: float) -> float | None:
    """The pace of an answer, for a worker whose limit is learned."""
    worker = request.worker
    if worker is None or worker.limit is None:
        return None
    return worker.pace(now - request.sent_at, end.prompt_tokens, end.completion_tokens)


def _written(request: InferenceRequest, estimator: Estimator, now: float) -> float:
    """The generated tokens of an answer without an end, estimated."""
    token_s = estimator.token_s(0.5)
    if request.first_output_at or not token_s:
        return float(request.pieces)
    ran_s = now - request.dispatched_at - estimator.prefill_s(request.prompt_tokens + request.context_tokens)
    return min(max(0.0, ran_s / token_s), float(request.granted_tokens))
