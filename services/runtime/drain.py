"""Leaving without dropping anyone: unready, stop accepting, finish what runs, exit 0."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

LAST_WORDS_S = 1.0  # for a request cut by the end of the grace to tell its client


class Drain:
    """Whether the process is leaving, and how many requests still run.

    Draining begins once and never ends. A request that arrives after it began is refused with `draining`;
    one that already ran is finished, within the grace.
    """

    def __init__(self) -> None:
        self.draining = False
        self.inflight = 0
        self._on_begin: list[Callable[[], None]] = []

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Call this once, when draining begins: wake what waits, refuse what is queued."""
        self._on_begin.append(callback)

    def begin(self) -> None:
        """Begin to drain. A second call changes nothing."""
        if self.draining:
            return
        self.draining = True
        for callback in self._on_begin:
            callback()

    def __repr__(self) -> str:
        return f"<Drain {'draining' if self.draining else 'open'}, {self.inflight} in flight>"


async def let_end(tasks: Collection[asyncio.Task[Any]], grace_s: float) -> None:
    """Wait for what runs within the grace; cancel the rest, and let it say so."""
    if not tasks:
        return
    _, late = await asyncio.wait(set(tasks), timeout=grace_s)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=LAST_WORDS_S)
