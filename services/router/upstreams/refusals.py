"""A worker's error code -> the exception that the router raises.

A worker's own message reaches a client only with a status that judges the request itself (JUDGED), such as "the context
is too long"; `readable` cuts it and removes control characters. With any other status the client gets a fixed sentence
and the message goes to the log, since it may name the provider, an address, or a part of the operator's key.
"""

from __future__ import annotations

import re

import msgspec

from services.core.outcome import Outcome
from services.router.upstreams.call import EngineLost, WorkerFailed
from services.runtime.errors import BadInput, Refused
from services.runtime.upstream import readable

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a worker's JSON may raise: the last two for invalid UTF-8 and for unbounded nesting."""

ENDS = {
    str(Outcome.DEADLINE_EXCEEDED): Outcome.DEADLINE_EXCEEDED,
    str(Outcome.DEADLINE_EXPIRED): Outcome.DEADLINE_EXPIRED,
    str(Outcome.DEADLINE_INFEASIBLE): Outcome.DEADLINE_INFEASIBLE,
    str(Outcome.POISON): Outcome.POISON,
}
SENTENCES = {
    Outcome.DEADLINE_EXCEEDED: "the deadline passed while the worker generated the answer",
    Outcome.DEADLINE_EXPIRED: "the deadline passed before the worker began",
    Outcome.DEADLINE_INFEASIBLE: "the worker cannot answer before the deadline",
    Outcome.POISON: "the request terminated the worker's engine",
}
JUDGED = (400, 413, 422)
"""Statuses that judge the request itself: the client gets the worker's message."""
REFUSED_BY_STATUS = {
    404: "the worker does not know the requested resource",
    409: "the worker reported a conflict with this request",
    415: "the worker does not accept this media type",
}
"""Other statuses that are the request's fault, and the message in place of the worker's."""
CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PARAM = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")
ENGINE_DIED = "engine_died"
"""A Weir worker's code: its engine process died while it ran the request."""


def meaning(code: str, message: str, param: str | None = None, status: int = 500) -> Exception:
    """The exception for this code: Refused, BadInput, else WorkerFailed."""
    if code in ENDS:
        return ended(code, message)
    if (bad := bad_input(status, message, param, code)) is not None:
        return bad
    failure = EngineLost if code == ENGINE_DIED else WorkerFailed
    return failure(f"the worker failed: {message}")


def ended(code: str, message: str) -> Refused:
    """The end of the request that another Weir names by its code."""
    outcome = ENDS[code]
    refusal = Refused(outcome, SENTENCES[outcome])
    refusal.why = message
    return refusal


def bad_input(status: int, message: str | None, param: str | None, code: str | None) -> BadInput | None:
    """The request's own fault, by the worker's status; None for any other status."""
    text = REFUSED_BY_STATUS.get(status)
    if text is None:
        if status not in JUDGED:
            return None
        text = readable(message or "the worker found the request invalid")
    code = code if code and CODE.fullmatch(code) else None
    param = param if param and PARAM.fullmatch(param) else None
    bad = BadInput(text, param, status=status, code=code)
    bad.why = message or ""
    return bad
