"""The state of a member of a ring: weight, deficit, position. The rules are in `ring.py`."""

from __future__ import annotations

from enum import Enum
from math import inf


class RingPosition(Enum):
    """The position of a member in the ring."""

    OUT = "out"
    NEW = "new"
    NOW = "now"
    NEXT = "next"
    LATER = "later"


OUT, NEW, NOW = RingPosition.OUT, RingPosition.NEW, RingPosition.NOW
NEXT, LATER = RingPosition.NEXT, RingPosition.LATER
"""Short names: the lookup of an enum's member is slow, and every step needs positions."""


class Schedulable:
    """A member of a ring. `backlog` counts the requests that it could start now.

    Raises ValueError unless the weight is above 0 and finite.
    """

    __slots__ = ("backlog", "deficit", "due", "left_at", "position", "since", "turn_ended_at", "unsettled", "weight")

    def __init__(self, weight: float) -> None:
        if not 0 < weight < inf:
            raise ValueError(f"weight must be above 0 and finite, got {weight}")
        self.weight = weight
        self.backlog = 0
        self.deficit = 0.0
        self.unsettled = 0.0  # charges of what is in flight
        self.position = RingPosition.OUT
        self.since = -inf  # the ring's `given` when the deficit was last brought up to date
        self.due = 0.0  # the ring's `given` at which the deficit becomes positive
        self.left_at = 0.0
        self.turn_ended_at = 0.0  # work that the ring had served when the member's last turn ended

    def reset(self) -> None:
        """Reset to the state before its first turn. Requests in flight stay charged until they are settled."""
        self.backlog, self.position = 0, OUT
        self.deficit, self.since = 0.0, -inf
        self.due = self.left_at = self.turn_ended_at = 0.0
