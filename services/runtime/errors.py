"""The errors that end a request, and the one place where they become HTTP.

    WeirError                     carries an Outcome: the metric label and the key of the table below
    ├── BadInput                  400 by default; `param` names the field
    │   └── TooLarge              413
    ├── NoSuchModel               404 model_not_found
    ├── Unauthorized              401 invalid_api_key
    └── Refused                   a decision: 429 while capacity is contended, 503 when there is none
        └── UpstreamFailed        502: a worker failed before the first token, after the one retry

429 means that capacity exists but is contended, 503 that there is none (as in llm-d-router and Ray, 2026). A request
whose own deadline has passed is not retryable; every retryable rejection carries a hint. See docs/api/rejections.md.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.contracts.problem import Details, ErrorBody, Problem
from services.core.outcome import Outcome

Headers = list[tuple[bytes, bytes]]

DEFAULT_RETRY_HINT_MS = 500
MIN_RETRY_HINT_MS = 50
MAX_RETRY_HINT_MS = 30_000

OURS = "/services/"
"""Part of the path of every file of this project."""
MAX_ECHOED_CHARS = 500
"""Characters of an assertion's text that are logged."""


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """How an outcome is answered. `retry` is the header x-should-retry; a retryable outcome always has a hint."""

    status: int
    type: str
    retry: bool = False


REFUSALS: dict[Outcome, ErrorStatus] = {
    Outcome.TENANT_QUEUE_FULL: ErrorStatus(429, "rate_limit_error", retry=True),
    Outcome.RATE_LIMITED: ErrorStatus(429, "rate_limit_error", retry=True),
    Outcome.YIELD: ErrorStatus(429, "rate_limit_error", retry=True),
    Outcome.DEADLINE_INFEASIBLE: ErrorStatus(429, "rate_limit_error", retry=True),
    Outcome.DEADLINE_EXPIRED: ErrorStatus(429, "rate_limit_error"),
    Outcome.DEADLINE_EXCEEDED: ErrorStatus(504, "timeout_error"),
    Outcome.NO_CAPACITY: ErrorStatus(503, "service_unavailable_error", retry=True),
    Outcome.DRAINING: ErrorStatus(503, "service_unavailable_error", retry=True),
    Outcome.UPSTREAM_FAILED: ErrorStatus(502, "upstream_error", retry=True),
    Outcome.POISON: ErrorStatus(422, "invalid_request_error"),
    Outcome.MODEL_NOT_FOUND: ErrorStatus(404, "invalid_request_error"),
    Outcome.BAD_INPUT: ErrorStatus(400, "invalid_request_error"),
    Outcome.CLIENT_GONE: ErrorStatus(499, "client_gone"),
    Outcome.INTERNAL: ErrorStatus(500, "server_error"),
}


class WeirError(Exception):
    type: str | None
    """The error type of the body; None for the outcome's own."""
    headers: Sequence[tuple[bytes, bytes]]
    """Headers beside those that every rejection has."""
    why: str
    """For the log only: it may contain an address or another service's text."""

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        code: str | None = None,
        details: Details | None = None,
        retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.param = param
        self.status = status if status is not None else REFUSALS[outcome].status
        self.code = code or str(outcome)
        self.details = details or Details()
        self.retry = REFUSALS[outcome].retry if retry is None else retry
        self.type = None
        self.headers = ()
        self.why = ""


class BadInput(WeirError):
    """The request is invalid; a retry cannot help."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(Outcome.BAD_INPUT, message, param=param, status=status, code=code)


class TooLarge(BadInput):
    """413; the message names the limit."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param, status=413, code="request_too_large")


class Unauthorized(WeirError):
    """401: no key, or an unknown one."""

    def __init__(self, message: str) -> None:
        super().__init__(Outcome.BAD_INPUT, message, status=401, code="invalid_api_key")
        self.type = "authentication_error"
        self.headers = ((b"www-authenticate", b"Bearer"),)


class NoSuchModel(WeirError):
    """404: no worker serves the model, or the tenant may not use it; the answer does not distinguish the two."""

    def __init__(self, model: str) -> None:
        super().__init__(Outcome.MODEL_NOT_FOUND, f"no model named {model!r} is served here", param="model")


class Refused(WeirError):
    """A decision not to serve the request now. A retryable outcome gets a default hint where the caller gives none.

    `hopeless`: an unchanged retry cannot help, whatever the outcome usually says, so there is no hint. Hints and waits
    are in milliseconds.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        reason: str | None = None,
        scope: str | None = None,
        retry_hint_ms: float | None = None,
        predicted_wait_ms: float | None = None,
        deadline_ms: float | None = None,
        queue_depth: int | None = None,
        hopeless: bool = False,
    ) -> None:
        answer = REFUSALS[outcome]
        retry = answer.retry and not hopeless
        details = Details(
            status="yield" if answer.status == 429 else None,
            reason=reason,
            scope=scope or ("platform" if retry else None),
            retry_hint_ms=_bounded_hint(retry_hint_ms) if retry else None,
            predicted_wait_ms=_whole(predicted_wait_ms),
            deadline_ms=_whole(deadline_ms),
            queue_depth=queue_depth,
        )
        super().__init__(outcome, message, details=details, retry=retry)


class UpstreamFailed(Refused):
    """502: a worker failed, and no part of its answer was passed on."""

    def __init__(self, message: str, retry_hint_ms: float | None = None, *, why: str = "") -> None:
        super().__init__(Outcome.UPSTREAM_FAILED, message, retry_hint_ms=retry_hint_ms)
        self.why = why


def _bounded_hint(hint_ms: float | None) -> int:
    if hint_ms is None or not math.isfinite(hint_ms):
        return DEFAULT_RETRY_HINT_MS
    whole_ms = math.ceil(hint_ms)
    return MIN_RETRY_HINT_MS if whole_ms < MIN_RETRY_HINT_MS else min(whole_ms, MAX_RETRY_HINT_MS)


def _whole(value_ms: float | None) -> int | None:
    return None if value_ms is None or not math.isfinite(value_ms) else math.ceil(value_ms)


_encoder = msgspec.json.Encoder()
_RETRY, _NO_RETRY = (b"x-should-retry", b"true"), (b"x-should-retry", b"false")


def problem(error: WeirError) -> tuple[int, Headers, bytes]:
    """The error as status, headers and body, for every service and every rejection."""
    answer = REFUSALS[error.outcome]
    details = error.details
    hint_ms, reason = details.retry_hint_ms, details.reason
    headers: Headers = [_RETRY if error.retry else _NO_RETRY]
    if hint_ms is not None:
        headers += ((b"retry-after", b"%d" % -(-hint_ms // 1000)), (b"retry-after-ms", b"%d" % hint_ms))
    if reason is not None:
        headers.append((b"x-weir-reason", reason.encode("ascii", "replace")))
    if error.headers:
        headers += error.headers
    body = Problem(ErrorBody(error.message, error.type or answer.type, error.code, error.param, details))
    return error.status, headers, _encoder.encode(body)


def place_of(error: BaseException) -> str:
    """Where it was raised, without the text, which may quote a prompt; our assertions hold only counts and ids."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(
        f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in reversed(frames)
    )
    ours = isinstance(error, AssertionError) and frames and OURS in frames[-1].filename
    return f"{type(error).__name__} in {places}{f': {error}'[:MAX_ECHOED_CHARS] if ours else ''}"
