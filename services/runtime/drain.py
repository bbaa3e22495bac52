"""Stopping without losing a request, in two steps (decision record 047).

    announce   /health/ready answers 503 `draining`; requests are served, each answer is its connection's last
    begin      new requests are refused with `draining`, the listener closes, and running ones may finish

The drain delay between the two lets load balancers notice by their health checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

LAST_WORDS_S = 1.0  # for a cancelled request to answer its client


class Drain:
    """The state of a stopping process, and its running requests. `announced` and `draining` never end."""

    def __init__(self) -> None:
        self.announced = False
        self.draining = False
        self.inflight = 0
        self._on_begin: list[Callable[[], None]] = []

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Call this once when draining begins, to refuse what is queued."""
        self._on_begin.append(callback)

    def announce(self) -> None:
        """Turn unready and continue to serve. A second call changes nothing."""
        self.announced = True

    def begin(self) -> None:
        """Refuse new requests. A second call changes nothing."""
        if self.draining:
            return
        self.announced = self.draining = True
        for callback in self._on_begin:
            callback()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "announced" if self.announced else "open"
        return f"<Drain {state}, {self.inflight} in flight>"


async def let_end(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    """Wait for the tasks within the grace period, then cancel the rest in the given order and wait LAST_WORDS_S."""
    if not tasks:
        return
    running = list(tasks)
    _, pending = await asyncio.wait(running, timeout=grace_s)
    late = [task for task in running if task in pending]
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=LAST_WORDS_S)
