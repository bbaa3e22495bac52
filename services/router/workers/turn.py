"""One request from admission to settlement: what the core knows of it, and what the shell holds for it.

The core's `Request` goes through every mechanism as it is; a turn adds the few things that only the world has: the
model asked for, the worker whose place it holds, the future that its task waits on, and why it was turned away.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.core.request import Request
from services.router.workers.worker import Worker
from services.runtime.errors import Refused
from services.runtime.tracing import Trace


@dataclass(slots=True, eq=False, repr=False)
class Turn(Request):
    """A request that has been offered. It holds a place at `worker` while that is set."""

    model: str = ""
    copies: int = 1
    """Answers that are computed for it at once, as `best_of` has it: so often its longest answer is charged."""
    affinity: int = 0
    """A hash of the prompt's beginning: who last served the same one has it in its prefix cache. 0: none."""
    prompt_bytes: int = 0
    worker: Worker | None = None
    left: Worker | None = None
    """The worker that its first attempt failed at."""
    attempt_id: str = ""
    attempts: int = 0
    sent_at: float = 0.0
    """When the last of them began, in the loop's seconds."""
    overloaded: bool = False
    """Whether the last of them was refused for want of capacity."""
    retried: bool = False
    kills: int = 0
    """Workers whose connection was lost while they worked on it."""
    refusal: Refused | None = None
    """Why it was turned away after it had been admitted: its time had come, or the router is leaving."""
    waiter: asyncio.Future[None] | None = None
    trace: Trace | None = None

    def wake(self) -> None:
        """Something was decided: its task looks."""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
