"""A concurrency cap: a fixed number of places, given out without waiting (docs/architecture/mechanisms/limits.md).

Rate limits bound arrivals; GPU latency depends on how many requests run. By Little's law N = X * R, so at capacity a
bound on N bounds R. The idea is heptamini's `max_inflight`. Bound: 0 <= inflight <= cap, always.
"""

from __future__ import annotations


class InflightCap:
    """At most `cap` places. Raises ValueError if `cap` is below 1."""

    __slots__ = ("cap", "inflight", "refused_total", "taken_total")

    def __init__(self, cap: int) -> None:
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        self.cap = cap
        self.inflight = 0
        self.taken_total = 0
        self.refused_total = 0

    def try_take(self) -> bool:
        """Take a place. False if none is free."""
        if self.inflight >= self.cap:
            self.refused_total += 1
            return False
        self.inflight += 1
        self.taken_total += 1
        return True

    def give_back(self) -> None:
        """Give a place back. Raises RuntimeError if more are given back than taken."""
        if self.inflight == 0:
            raise RuntimeError("a place was given back twice")
        self.inflight -= 1

    def __repr__(self) -> str:
        return f"<InflightCap {self.inflight}/{self.cap}, refused {self.refused_total}>"
