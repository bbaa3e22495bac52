"""A worker's error code -> what the router makes of it.

What is the request's fault is the client's to know; what is the deadline's ends the request as such; the rest is the
worker's fault and may be tried once elsewhere. A table, so that a new code is one line and never a branch.
"""

from __future__ import annotations

import msgspec

from services.core.outcome import Outcome
from services.router.upstreams.call import EngineLost, WorkerFailed
from services.runtime.errors import BadInput, Refused

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a worker's JSON may raise: the last two for text that is not UTF-8, and for nesting without end."""

ENDS = {
    str(Outcome.DEADLINE_EXCEEDED): Outcome.DEADLINE_EXCEEDED,
    str(Outcome.DEADLINE_EXPIRED): Outcome.DEADLINE_EXPIRED,
    str(Outcome.DEADLINE_INFEASIBLE): Outcome.DEADLINE_INFEASIBLE,
    str(Outcome.POISON): Outcome.POISON,
}
ENGINE_DIED = "engine_died"
"""Of a Weir worker: the process that computes died while the request ran in it."""


def meaning(code: str, message: str, param: str | None = None, status: int = 500) -> Exception:
    """What this code means here, to be raised: Refused, BadInput, else WorkerFailed."""
    if code in ENDS:
        return Refused(ENDS[code], message)
    if status in (400, 404, 409, 413, 415, 422):
        return BadInput(message, param, status=status, code=code)
    failure = EngineLost if code == ENGINE_DIED else WorkerFailed
    return failure(f"the worker failed: {message}")
