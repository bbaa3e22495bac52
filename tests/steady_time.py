"""An event loop on real time whose clock does not count the time for which the machine stood still.

    run(main())          # or: with asyncio.Runner(loop_factory=SteadyLoop) as runner: ...

A shared machine takes the processor away for a second whenever it likes. A deadline of 150 ms that was to pass at a
worker then passes on the way there, and a test of the one sees the other. Here a second that is lost anywhere, in a
callback or while waiting, counts for at most `MOST_S`; what is waited for on purpose lasts as long as it ever did.
For sockets and threads, unlike virtual time. Whoever asks another clock than the loop's is not helped.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MOST_S = 0.01
"""The most that one turn of the loop counts for, and one look at its sockets."""


class _SteadySelector(selectors.DefaultSelector):
    """Waits in short pieces, and believes no piece that it took longer than it was to take."""

    def __init__(self) -> None:
        super().__init__()
        self._counted_s = 0.0
        self._looked_at = time.monotonic()

    def now(self) -> float:
        return self._counted_s + min(time.monotonic() - self._looked_at, MOST_S)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        until = float("inf") if timeout is None else self.now() + timeout
        while True:
            piece_s = min(max(until - self.now(), 0.0), MOST_S)
            self._count()
            ready = super().select(piece_s)
            self._count(piece_s)
            if ready or self.now() >= until:
                return ready

    def _count(self, most_s: float = MOST_S) -> None:
        """Add what has passed since the last time."""
        now = time.monotonic()
        self._counted_s += min(now - self._looked_at, most_s)
        self._looked_at = now


class SteadyLoop(asyncio.SelectorEventLoop):
    """A selector loop on steady time."""

    def __init__(self) -> None:
        self._steady = _SteadySelector()
        super().__init__(self._steady)

    def time(self) -> float:
        return self._steady.now()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in steady time."""
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        return runner.run(main)
