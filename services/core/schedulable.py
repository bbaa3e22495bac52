"""Who takes turns in a ring: what it owes or is owed, and where it stands. Plain state; the rules are in `ring.py`."""

from __future__ import annotations

from enum import Enum
from math import inf


class RingPosition(Enum):
    """Where a member stands in the ring."""

    OUT = "out"
    NEW = "new"
    NOW = "now"
    NEXT = "next"
    LATER = "later"


OUT, NEW, NOW, NEXT, LATER = RingPosition
"""By short names, since an enum's members are looked up slowly, and turns at every step."""


class Schedulable:
    """Someone who takes turns. `backlog` counts the requests that it could start now."""

    __slots__ = ("backlog", "deficit", "due", "left_at", "position", "since", "turned_at", "unsettled", "weight")

    def __init__(self, weight: float) -> None:
        if not 0 < weight < inf:
            raise ValueError(f"weight must be above 0 and finite, got {weight}")
        self.weight = weight
        self.backlog = 0
        self.deficit = 0.0
        self.unsettled = 0.0  # charges of what is in flight
        self.position = RingPosition.OUT
        self.since = -inf  # how much the ring had given when the deficit was last brought up to date
        self.due = 0.0  # how much it must have given before the deficit is above 0
        self.left_at = 0.0
        self.turned_at = 0.0  # what the ring had served when its last turn ended

    def reset(self) -> None:
        """As one that has never been in the ring. What is in flight stays charged until it is settled."""
        self.backlog, self.position = 0, OUT
        self.deficit, self.since = 0.0, -inf
        self.due = self.left_at = self.turned_at = 0.0
