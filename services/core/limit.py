"""A hard cap and an honest yield: the narrowest primitive that governs *execution*.

Rate limits bound arrivals; any number of requests may still be executing. A cap bounds what executes, which is what
a GPU's latency depends on (Little's law: N = X * R, so a bound on N bounds R once X is at capacity). There is no
queue here and no waiting: a place now, or none. The idea on its own is heptamini's `max_inflight`.

Bound: at all times `0 <= inflight <= cap`.
"""

from __future__ import annotations


class InflightCap:
    """At most `cap` places, taken without waiting and given back once each."""

    __slots__ = ("cap", "inflight", "refused_total", "taken_total")

    def __init__(self, cap: int) -> None:
        if cap < 1:
            raise ValueError(f"cap must be at least 1, got {cap}")
        self.cap = cap
        self.inflight = 0
        self.taken_total = 0
        self.refused_total = 0

    def try_take(self) -> bool:
        """Take a place, or say at once that there is none."""
        if self.inflight >= self.cap:
            self.refused_total += 1
            return False
        self.inflight += 1
        self.taken_total += 1
        return True

    def give_back(self) -> None:
        """Give a place back. More often than taken is a bug in the caller, and raises RuntimeError."""
        if self.inflight == 0:
            raise RuntimeError("a place was given back twice")
        self.inflight -= 1

    def __repr__(self) -> str:
        return f"<InflightCap {self.inflight}/{self.cap}, refused {self.refused_total}>"
