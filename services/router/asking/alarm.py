"""The one timer of a request: its task is cancelled when the time has come, and told which time it was.

A request has up to three limits, one after the other: the first token's, the silence between two tokens, and the
deadline above both. They are one timer that is moved. Moving it later costs nothing: it looks at its limit when it
fires, and sleeps on. `asyncio.timeout` does the same for one limit at three times the cost.
"""

from __future__ import annotations

import asyncio
from math import inf

TELLING_S = 1.0
"""How often it looks whether the client has been told."""


class Alarm:
    """Cancels a task at the earlier of two limits: `deadline`, set once, and `limit`, moved as the answer goes on.

    `work_until` is what a worker is told of its time: the deadline, unless work goes on for nobody (`orphans.py`).
    """

    __slots__ = ("_handle", "_loop", "_task", "deadline", "limit", "rang", "silence", "telling", "work_until")

    def __init__(self, task: asyncio.Task[None], deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = task
        self.deadline = self.work_until = deadline
        self.limit = inf
        self.silence = False
        self.telling = False
        """The client is being told, and it is the one who is waited for: that is no silence of the worker's."""
        self.rang = False
        """It has cancelled the task: the CancelledError that comes is a limit's, not a client's."""
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
        if self.telling and self.silence:
            self.limit = max(self.limit, now + TELLING_S)
        due = min(self.limit, self.deadline)
        if now < due:
            self._handle = self._loop.call_at(due, self._look)
            return
        self._handle = None
        self._ring()

    def _ring(self) -> None:
        self.rang = True
        self._task.cancel()

    def __repr__(self) -> str:
        state = "rang" if self.rang else "set" if self._handle is not None else "stopped"
        return f"<Alarm {state} for {min(self.limit, self.deadline):g}>"
