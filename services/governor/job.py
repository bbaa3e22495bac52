"""A job between the protocol and the backend: the work and its result."""

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
    REFUSED = "refused"  # by a full backend: the client may retry


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended. `shown` goes to the client; `retry_s`: the retry hint in seconds of a backend that refused."""

    ended: Ended
    seconds: float = 0.0
    retry_s: float = 0.0
    shown: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """A whole payload to run in `slot` by `deadline` (`now`'s clock; None: no limit)."""

    job: str
    payload: bytes
    content_type: str
    deadline: float | None
    slot: Slot
    auth: str = ""
