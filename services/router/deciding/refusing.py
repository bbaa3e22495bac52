"""A decision of the core -> the error that the client gets: a sentence with the numbers behind the decision."""

from __future__ import annotations

from collections.abc import Callable

from services.core.admissioncheck import Rejection
from services.core.outcome import Outcome
from services.core.request import Request
from services.runtime.errors import Refused, UpstreamFailed

LEAVING_HINT_MS = NO_CAPACITY_HINT_MS = 1000.0
PAUSED_HINT_MS = 5000.0
FAILED_HINT_MS = 500.0
SPREAD = 0.2

Say = Callable[[Request, Rejection], str]


def _infeasible(request: Request, decision: Rejection) -> str:
    slack_ms = (request.deadline - request.arrived_at) * 1000
    if decision.reason == "first_token":
        slack_ms = (request.first_token_by - request.arrived_at) * 1000
        return (
            f"the first token cannot arrive within {slack_ms:.0f} ms: the queue wait alone is about {_ms(decision)} ms"
        )
    if decision.reason == "too_long":
        first_ms = (request.first_token_by - request.arrived_at) * 1000
        of_first = f", {first_ms:.0f} ms for its first token" if first_ms < slack_ms else ""
        return f"a request of this size takes longer than its {slack_ms:.0f} ms{of_first}, even without a queue wait"
    return f"the request cannot be answered within {slack_ms:.0f} ms: the queue wait alone is about {_ms(decision)} ms"


def _deadline_ms(request: Request) -> float:
    """As the client sent it: the difference of two floats is not exact."""
    return round((request.deadline - request.arrived_at) * 1000, 3)


def _ms(decision: Rejection) -> int:
    return round(decision.predicted_wait_s * 1000)


SAY: dict[str, Say] = {
    "no_worker": lambda *_: "no healthy worker serves this model",
    "no_slot": lambda _, decision: (
        f"no slot becomes free within the requested wait; the expected wait is about {_ms(decision)} ms"
    ),
    "standing_queue": lambda _, decision: f"this tenant has a standing queue of about {_ms(decision)} ms",
    "tenant_requests": lambda *_: "this tenant's queue is full: it holds too many requests",
    "tenant_cost": lambda *_: "this tenant's queue is full: it holds too much work",
    "tenant_bytes": lambda *_: "this tenant's queue is full: its requests use too much memory",
    "platform_requests": lambda *_: "the router's queue is full: it holds too many requests",
    "platform_cost": lambda *_: "the router's queue is full: it holds too much work",
    "platform_bytes": lambda *_: "the router's queue is full: its requests use too much memory",
}


class Refusing:
    """Makes every rejection. Where the core has no retry reservation, the hint is a fixed time and up to a fifth
    more, at random, so that clients rejected together do not return together.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random

    def about_ms(self, hint_ms: float) -> float:
        """`hint_ms`, and up to a fifth more."""
        return hint_ms * (1.0 + SPREAD * self._random())

    def at_admission(self, request: Request, decision: Rejection, queue_depth: int) -> Refused:
        """Rejected at admission. For NO_CAPACITY the hint is fixed: workers are usable as soon as one answers a
        probe.
        """
        say = SAY.get(decision.reason, _infeasible)
        hint_s = decision.retry_hint_s
        hint_ms = None if hint_s is None else hint_s * 1000
        if decision.outcome is Outcome.NO_CAPACITY:
            hint_ms = self.about_ms(NO_CAPACITY_HINT_MS)
        return Refused(
            decision.outcome,
            say(request, decision),
            reason=decision.reason,
            scope=decision.scope,
            retry_hint_ms=hint_ms,
            predicted_wait_ms=decision.predicted_wait_s * 1000,
            deadline_ms=_deadline_ms(request),
            queue_depth=queue_depth,
            hopeless=hint_ms is None,
        )

    def evicted(self, now: float, request: Request, hint_s: float) -> Refused:
        """Evicted from the queue: the deadline, the first token's deadline, or the client's own wait limit has come."""
        waited_ms = (now - request.queued_at) * 1000
        deadline_ms = _deadline_ms(request)
        if request.expires_for == "patience":
            return Refused(
                Outcome.YIELD, f"no slot became free within the requested wait of {waited_ms:.0f} ms", reason="no_slot",
                scope="tenant", retry_hint_ms=hint_s * 1000, deadline_ms=deadline_ms,
            )  # fmt: skip
        what = "the first token" if request.expires_for == "first_token" else "the answer"
        return Refused(
            Outcome.DEADLINE_EXPIRED, f"after {waited_ms:.0f} ms in the queue, {what} could no longer arrive in time",
            reason=request.expires_for, deadline_ms=deadline_ms,
        )  # fmt: skip

    def leaving(self) -> Refused:
        hint_ms = self.about_ms(LEAVING_HINT_MS)
        return Refused(Outcome.DRAINING, "this router is shutting down", reason="draining", retry_hint_ms=hint_ms)

    def no_capacity(self, message: str) -> Refused:
        hint_ms = self.about_ms(NO_CAPACITY_HINT_MS)
        return Refused(Outcome.NO_CAPACITY, message, reason="no_worker", retry_hint_ms=hint_ms)

    def no_live_worker(self, model: str) -> Refused:
        return self.no_capacity(f"no healthy worker serves {model}")

    def paused(self) -> Refused:
        hint_ms = self.about_ms(PAUSED_HINT_MS)
        return Refused(Outcome.YIELD, "this tenant is paused", reason="paused", scope="tenant", retry_hint_ms=hint_ms)

    def busy(self, message: str, delay_ms: float) -> Refused:
        """The workers refused, and named a delay."""
        hint_ms = self.about_ms(delay_ms)
        return Refused(Outcome.YIELD, message, reason="workers_busy", retry_hint_ms=hint_ms)

    def no_connection(self, why: str) -> Refused:
        """The router has no connection left: its pool is full, or the system gives it no socket."""
        hint_ms = self.about_ms(NO_CAPACITY_HINT_MS)
        refusal = Refused(
            Outcome.NO_CAPACITY, "this router has no free connection to a worker", reason="no_connection",
            retry_hint_ms=hint_ms,
        )  # fmt: skip
        refusal.why = why
        return refusal

    def failed(self, message: str, why: str = "") -> UpstreamFailed:
        """A worker failed. `why` is the worker's own message, for the log."""
        return UpstreamFailed(message, retry_hint_ms=self.about_ms(FAILED_HINT_MS), why=why)
