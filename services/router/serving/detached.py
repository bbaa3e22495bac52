"""Detached requests: with cancellation off, work continues after its client disconnects or its deadline passes.

The client gets the same refusal and the request counts as ended for it, but the work runs to its end, as behind a proxy
that ignores closed connections; the request is settled then. The switch applies as it was when the request arrived.
Switching cancellation on ends every detached request, and later each one that arrived while it was off (decision 040).

Bounds: a detached request holds its slot or place as any other, at most until `hold_s` after its arrival.
"""

from __future__ import annotations

import asyncio
from math import inf

from services.core.outcome import Outcome
from services.router.deadlinetimer import DeadlineTimer
from services.router.request import InferenceRequest
from services.router.serving.response import send_failure_now
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.errors import Refused
from services.runtime.http import Exchange
from services.runtime.ordered import OrderedSet

LONGEST_S = 600.0
"""The longest deadline that a worker gets."""


class DetachedRequests:
    """The tasks of detached requests. `cancels` follows the switch."""

    def __init__(self, metrics: RouterMetrics, journal: Journal, *, hold_s: float) -> None:
        self._metrics = metrics
        self._journal = journal
        self._hold_s = min(hold_s, LONGEST_S)
        self._works: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.cancels = True

    def __len__(self) -> int:
        return len(self._works)

    def watch(self, exchange: Exchange, request: InferenceRequest) -> DetachingTimer:
        """The timer of a request that is not cancelled, set after admission."""
        task = exchange.task
        assert task is not None, "a handler that waits has become a task"
        timer = DetachingTimer(task, request.arrived_at + self._hold_s, exchange, request, self)
        exchange.on_gone(timer.gone)
        return timer

    def switch(self, cancels: bool) -> int:
        """Set whether requests are cancelled from now on. If so, end all detached requests; returns how many."""
        self.cancels = cancels
        ended = list(self._works) if cancels else []
        for work in ended:
            work.cancel()
        return len(ended)

    def detach(self, work: asyncio.Task[None], exchange: Exchange, request: InferenceRequest, outcome: Outcome) -> None:
        """The request ends for its client and is counted; its work continues."""
        before = request.client_outcome
        assert before is None, f"{exchange!r} is over for its client, as {before}: now {outcome}"
        now = asyncio.get_running_loop().time()
        after_s = now - request.arrived_at
        request.client_outcome, request.client_outcome_at = outcome, now
        self._metrics.ended(request.tenant, outcome, after_s)
        self._journal.detached(request)
        exchange.log["client_ms"] = round(after_s * 1000, 2)
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    def __repr__(self) -> str:
        return f"<DetachedRequests {len(self)}, {'cancelled' if self.cancels else 'left alone'}>"


class DetachingTimer(DeadlineTimer):
    """Rejects the client and lets the work continue; cancels a detached request that is held too long."""

    __slots__ = ("_detached", "_exchange", "_request")

    def __init__(
        self, task: asyncio.Task[None], work_until: float, exchange: Exchange, request: InferenceRequest,
        detached: DetachedRequests,
    ) -> None:  # fmt: skip
        super().__init__(task, request.deadline)
        self.work_until = max(request.deadline, work_until)
        self._exchange = exchange
        self._request = request
        self._detached = detached

    def gone(self) -> None:
        """The client has disconnected."""
        if self._detached.cancels:
            self._task.cancel()
        elif self._request.client_outcome is None:
            self._go_on(Outcome.CLIENT_GONE)

    def set(self, limit: float, *, silence: bool = False) -> None:
        """For a detached request only the worker's silence is still a limit."""
        if silence or self._request.client_outcome is None:
            super().set(limit, silence=silence)

    def _fire(self) -> None:
        request = self._request
        broken = self.silence and self.limit < self.deadline
        over = request.client_outcome is not None or request.end is not None
        if broken or over or self._detached.cancels:
            super()._fire()
            return
        failure = self._too_late()
        self._go_on(Outcome.DEADLINE_EXCEEDED)
        send_failure_now(self._exchange, failure)

    def _go_on(self, outcome: Outcome) -> None:
        self.stop()
        self.deadline = self.work_until
        if not self.silence:
            self.limit = inf
        self._handle = self._loop.call_at(min(self.limit, self.deadline), self._look)
        self._detached.detach(self._task, self._exchange, self._request, outcome)

    def _too_late(self) -> Refused:
        deadline_ms = self._request.deadline_ms
        if self.limit < self.deadline:
            what, reason = "the first token did not arrive in time", "first_token"
        else:
            what, reason = f"the deadline of {deadline_ms:g} ms passed", "deadline"
        return Refused(
            Outcome.DEADLINE_EXCEEDED, f"{what}; cancellation is off, so its work continues", reason=reason,
            deadline_ms=deadline_ms,
        )  # fmt: skip
