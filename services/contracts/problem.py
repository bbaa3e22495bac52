"""The one error body: the OpenAI envelope, with Weir's facts under `details`.

Every refusal and every failure on every path has this shape, so one client-side parser reads them all.
"""

from __future__ import annotations

import msgspec


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client may act on. `status` is "yield" when capacity exists but is contended (RFC 6585's 429)."""

    status: str | None = None
    reason: str | None = None
    scope: str | None = None  # "tenant" | "class" | "platform"
    retry_hint_ms: int | None = None
    predicted_wait_ms: int | None = None
    deadline_ms: int | None = None
    queue_depth: int | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """`code` is stable and for programs; `message` is for people; `param` names the offending field."""

    message: str
    type: str
    code: str
    param: str | None = None
    details: Details = Details()


class Problem(msgspec.Struct, frozen=True):
    """The envelope `{"error": {...}}`."""

    error: ErrorBody
