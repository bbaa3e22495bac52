"""Requests that run at a worker without a lease: their slots count, and go to whom the book says once they end."""

from __future__ import annotations

Process = tuple[str, int]
"""A router and its epoch."""


class Unleased:
    """Those of processes whose leases have ended, and those that came without an ask."""

    __slots__ = ("_left", "running", "without_ask")

    def __init__(self) -> None:
        self._left: dict[Process, int] = {}
        self.running = 0
        """All of them."""
        self.without_ask = 0

    def add(self, process: Process, count: int = 1) -> None:
        """Requests of this process run on without its lease."""
        if count:
            self._left[process] = self._left.get(process, 0) + count
            self.running += count

    def end(self, process: Process) -> bool:
        """A request of this process has ended. False: none ran."""
        left = self._left.pop(process, 0) - 1
        if left < 0:
            return False
        self.running -= 1
        if left:
            self._left[process] = left
        return True

    def take(self, process: Process) -> int:
        """How many of this process run: it has a lease, which counts them from now on."""
        count = self._left.pop(process, 0)
        self.running -= count
        return count

    def add_without_ask(self) -> None:
        """A request came without an ask."""
        self.without_ask += 1
        self.running += 1

    def end_without_ask(self) -> bool:
        """A request that came without an ask has ended. False: none ran."""
        if not self.without_ask:
            return False
        self.without_ask -= 1
        self.running -= 1
        return True

    def __repr__(self) -> str:
        return f"{self.running - self.without_ask} left, {self.without_ask} without a lease"
