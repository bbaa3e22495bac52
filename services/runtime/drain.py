"""Leaving without losing a request, in two steps: first say it, then stop.

    announce   /health/ready says 503 `draining`; everything is still served, each answer is its connection's last
    begin      new requests are refused with `draining`, the listener closes, and what runs may finish

Between the two lies the drain delay: a load balancer needs one or two of its health checks to notice, and until then
it goes on sending. Refusing what it sends meanwhile would lose it, so the service keeps serving (as Envoy does while
it drains, and as Kubernetes' guide to the end of pods asks for with a `preStop` delay).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

LAST_WORDS_S = 1.0  # for a request cut by the end of the grace to tell its client


class Drain:
    """Whether the process is leaving, and how many requests still run.

    `announced` means that the service is unready and still serves. `draining` means that a request that arrives is
    refused, and one that already runs is finished, within the grace. Each begins once and never ends.
    """

    def __init__(self) -> None:
        self.announced = False
        self.draining = False
        self.inflight = 0
        self._on_begin: list[Callable[[], None]] = []

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Call this once, when draining begins: wake what waits, refuse what is queued."""
        self._on_begin.append(callback)

    def announce(self) -> None:
        """The service is not ready from here on, and still serves. A second call changes nothing."""
        self.announced = True

    def begin(self) -> None:
        """Begin to drain. A second call changes nothing."""
        if self.draining:
            return
        self.announced = self.draining = True
        for callback in self._on_begin:
            callback()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "announced" if self.announced else "open"
        return f"<Drain {state}, {self.inflight} in flight>"


async def let_end(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    """Wait for what runs within the grace; cancel the rest, in their order here, and let it say so."""
    if not tasks:
        return
    running = list(tasks)
    _, pending = await asyncio.wait(running, timeout=grace_s)
    late = [task for task in running if task in pending]
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=LAST_WORDS_S)
