"""A job between the protocol and the backend: the work that is handed over, and the result that comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.governor.gate import Slot


class Ended(Enum):
    """How a job that ran ended."""

    DONE = "done"
    FAILED = "failed"
    LATE = "late"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # by a backend that is full itself: the client may retry


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a job. `shown` goes to the client; `retry_s`: the retry hint of a backend that refused, in
    seconds.
    """

    ended: Ended
    seconds: float = 0.0
    retry_s: float = 0.0
    shown: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A whole payload, to be run by `deadline` (`now`'s clock; None: no limit), in the slot that it holds."""

    job: str
    payload: bytes
    content_type: str
    deadline: float | None
    slot: Slot
    auth: str = ""
