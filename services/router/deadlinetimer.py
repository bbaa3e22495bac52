"""The timer of a request: it cancels the request's task at its limit, and records which limit that was.

One timer serves the limit for the first token, for the silence between two outputs, and the deadline above both. Moving
it later is an assignment, since it checks its limit when it fires and re-arms; `asyncio.timeout` costs three times as
much for one limit.
"""

from __future__ import annotations

import asyncio
from math import inf

WRITING_S = 1.0
"""How often the timer checks whether the client has read what was written to it."""
LATE_S = 0.1
"""A timer later than this shows that the router stood still, and that the worker's output may not be read yet."""


class DeadlineTimer:
    """Cancels a task at the earlier of `deadline`, set once, and `limit`, which moves; `work_until` is the worker's."""

    __slots__ = ("_handle", "_loop", "_task", "client_writing", "deadline", "fired", "limit", "silence", "work_until")

    def __init__(self, task: asyncio.Task[None], deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = task
        self.deadline = self.work_until = deadline
        self.limit = inf
        self.silence = False
        self.client_writing = False
        """The router waits for the client to read; the worker does not count as silent meanwhile."""
        self.fired = False
        """The timer cancelled the task: the CancelledError comes from a limit, not from the client."""
        self._handle: asyncio.TimerHandle | None = self._loop.call_at(deadline, self._look)

    def set(self, limit: float, *, silence: bool = False) -> None:
        """Set a nearer limit. Only a limit earlier than the armed one re-arms the timer."""
        due = min(self.limit, self.deadline)
        self.limit, self.silence = limit, silence
        if limit < due and self._handle is not None:
            self._handle.cancel()
            self._handle = self._loop.call_at(limit, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        now = self._loop.time()
        if self.client_writing and self.silence:
            self.limit = max(self.limit, now + WRITING_S)
        elif self.silence and now - self.limit > LATE_S:
            self.limit = now + LATE_S
        due = min(self.limit, self.deadline)
        if now < due:
            self._handle = self._loop.call_at(due, self._look)
            return
        self._handle = None
        self._fire()

    def _fire(self) -> None:
        self.fired = True
        self._task.cancel()

    def __repr__(self) -> str:
        state = "fired" if self.fired else "set" if self._handle is not None else "stopped"
        return f"<DeadlineTimer {state} for {min(self.limit, self.deadline):g}>"
