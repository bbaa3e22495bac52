"""A circuit breaker (Nygard, *Release It!*): after a few failures in a row it blocks calls, then lets one probe pass.

    state      on       next       and
    closed     success  closed     failures := 0
    closed     failure  closed     failures += 1
    closed     tripped  open       for `open_for_s`
    open       timer    half-open  one probe may pass
    half-open  success  closed     failures := 0
    half-open  failure  open       for twice as long as before, at most `max_open_s`

`tripped` is the failure that makes `failures_to_open` in a row. Concurrent calls that fail together count as one
failure: one stall on our side with fifty calls in flight says less than three failures one after the other. Results of
calls that were made before the breaker opened do not count while it is open. If a probe never reports, another may pass
after `open_for_s`.

Bound: after a dependency freezes, callers lose time only in the first `failures_to_open` timeouts; after that only the
probes do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class BreakerState(Enum):
    """Whether calls pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerEvent(Enum):
    """The result of a call, or the timer."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRIPPED = "tripped"
    TIMER = "timer"


TRANSITIONS: dict[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.SUCCESS): BreakerState.CLOSED,
    (BreakerState.CLOSED, BreakerEvent.FAILURE): BreakerState.CLOSED,
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.TIMER): BreakerState.HALF_OPEN,
    (BreakerState.OPEN, BreakerEvent.SUCCESS): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.FAILURE): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.TIMER): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.SUCCESS): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.FAILURE): BreakerState.OPEN,
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state, for the log."""

    before: BreakerState
    after: BreakerState


class Breaker:
    """Ask `allow` before a call and report its end. A report returns the change of state, if there is one.

    Raises ValueError unless `failures_to_open` >= 1 and 0 < `open_for_s` <= `max_open_s`.
    """

    __slots__ = (
        "_failed_at",
        "_open_for_s",
        "_until",
        "failures",
        "failures_to_open",
        "max_open_s",
        "open_for_s",
        "state",
    )

    def __init__(self, *, failures_to_open: int = 3, open_for_s: float = 1.0, max_open_s: float = 30.0) -> None:
        if failures_to_open < 1:
            raise ValueError(f"failures_to_open must be at least 1, got {failures_to_open}")
        if not 0 < open_for_s <= max_open_s:
            raise ValueError(f"open_for_s must be above 0 and at most max_open_s, got {open_for_s}")
        self.failures_to_open = failures_to_open
        self.open_for_s = open_for_s
        self.max_open_s = max_open_s
        self.state = BreakerState.CLOSED
        self.failures = 0
        self._open_for_s = open_for_s
        self._until = 0.0
        self._failed_at = -math.inf

    def allow(self, now: float) -> bool:
        """Whether the call may be made. The first call after the open time is the probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._until:
            return False
        self.state = TRANSITIONS[self.state, BreakerEvent.TIMER]
        self._until = now + self.open_for_s
        return True

    def succeeded(self, now: float) -> Change | None:
        """Report a call that was answered, even with an error."""
        return self._on(BreakerEvent.SUCCESS, now)

    def failed(self, now: float, *, asked_at: float) -> Change | None:
        """Report a call, made at `asked_at`, that timed out or could not be made."""
        if asked_at < self._failed_at:
            return None  # concurrent with a failure that is already counted
        self._failed_at = now
        trips = self.state is BreakerState.CLOSED and self.failures + 1 >= self.failures_to_open
        return self._on(BreakerEvent.TRIPPED if trips else BreakerEvent.FAILURE, now)

    def _on(self, event: BreakerEvent, now: float) -> Change | None:
        before, self.state = self.state, TRANSITIONS[self.state, event]
        if self.state is BreakerState.CLOSED:
            self.failures = 0 if event is BreakerEvent.SUCCESS else self.failures + 1
            assert self.failures < self.failures_to_open, f"it should have opened: {self!r}"
        if before is self.state:
            return None
        if self.state is BreakerState.OPEN:
            self._open(now, again=before is BreakerState.HALF_OPEN)
        return Change(before, self.state)

    def _open(self, now: float, *, again: bool) -> None:
        self._open_for_s = min(self._open_for_s * 2, self.max_open_s) if again else self.open_for_s
        self._until = now + self._open_for_s
        self.failures = 0

    def __repr__(self) -> str:
        until = f" until {self._until:g}" if self.state is not BreakerState.CLOSED else ""
        return f"<Breaker {self.state.value}{until}, {self.failures}/{self.failures_to_open} failures>"
