"""The one timer of a request: it cancels the request's task at its limit, and says which limit that was.

A request has up to three limits, one after the other: the first token's, the silence between two tokens, and the
deadline above both. They are one timer that is moved. Moving it later costs nothing: it looks at its limit when it
fires, and sleeps on. `asyncio.timeout` does the same for one limit at three times the cost.
"""

from __future__ import annotations

import asyncio
from math import inf

WRITING_S = 1.0
"""How often the timer looks whether the client has taken what is written to it."""


class DeadlineTimer:
    """Cancels a task at the earlier of two limits: `deadline`, set once, and `limit`, moved as the answer goes on.

    `work_until` is the deadline that a worker gets: the request's own, unless its work may go on without its client
    (`detached.py`).
    """

    __slots__ = ("_handle", "_loop", "_task", "client_writing", "deadline", "fired", "limit", "silence", "work_until")

    def __init__(self, task: asyncio.Task[None], deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = task
        self.deadline = self.work_until = deadline
        self.limit = inf
        self.silence = False
        self.client_writing = False
        """The router writes to the client and waits for it: the worker is not silent meanwhile."""
        self.fired = False
        """The timer has cancelled the task: the CancelledError that comes is a limit's, not a client's."""
        self._handle: asyncio.TimerHandle | None = self._loop.call_at(deadline, self._look)

    def set(self, limit: float, *, silence: bool = False) -> None:
        """A nearer limit. An earlier one than before is armed anew; a later one costs an assignment."""
        due = min(self.limit, self.deadline)
        self.limit, self.silence = limit, silence
        if limit < due and self._handle is not None:
            self._handle.cancel()
            self._handle = self._loop.call_at(limit, self._look)

    def stop(self) -> None:
        """The request has ended."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        now = self._loop.time()
        if self.client_writing and self.silence:
            self.limit = max(self.limit, now + WRITING_S)
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
