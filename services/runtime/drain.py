"""Leaving without dropping anyone: unready, stop accepting, finish what runs, exit 0."""

from __future__ import annotations

from collections.abc import Callable


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
