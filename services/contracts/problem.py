"""The error body of every route: OpenAI's envelope, with Weir's facts under `details`."""

from __future__ import annotations

import msgspec


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts that a client may act on. `status` is "yield" when capacity exists but is contended (429, RFC 6585)."""

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
