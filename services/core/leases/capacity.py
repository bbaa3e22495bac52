"""How many slots a router plans with: its leases move with every request, and predictions need a steady figure.

    smoothed   the slots that it may use, over SMOOTH_S
    planned    smoothed, rounded; at least those in use, and at least 1 while the pool has slots

Unsmoothed, tenants below their share are refused in the moments in which their router has no slot.
"""

from __future__ import annotations

from math import exp

SMOOTH_S = 1.0


class LeasedSlots:
    """A fading mean of the slots that a router may use."""

    __slots__ = ("_at", "_may", "_smoothed")

    def __init__(self) -> None:
        self._at = 0.0
        self._may = 0
        self._smoothed: float | None = None

    def follow(self, now: float, may: int) -> None:
        """The router may use so many from now on."""
        if self._smoothed is None:
            self._smoothed = float(may)
        else:
            self._smoothed += (1.0 - exp((self._at - now) / SMOOTH_S)) * (self._may - self._smoothed)
        self._at, self._may = now, may

    def planned(self, uses: int, pool_slots: int) -> int:
        """The slots to plan with, of which it uses `uses`, in a pool of `pool_slots`."""
        return max(uses, round(self._smoothed or 0.0), 1 if pool_slots else 0)
