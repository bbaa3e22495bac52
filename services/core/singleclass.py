"""A ring for the one class of most routers: the interface of a ring without deficits, because no order is needed.

When a second class is configured a real ring replaces it, and the first class begins with one quantum, as every new
member does.
"""

from __future__ import annotations

from math import inf
from typing import Generic, TypeVar

from services.core.ring import Entry, Ring
from services.core.schedulable import Schedulable

M = TypeVar("M", bound=Schedulable)


class SingleClass(Generic[M]):
    """The single member of a ring, with the methods of `Ring`. `backlog` is its own."""

    __slots__ = ("_member", "_skipped", "backlog", "quantum")

    def __init__(self, quantum: float, member: M) -> None:
        self.quantum = quantum
        self.backlog = 0
        self._member = member
        self._skipped = False

    def add_backlog(self, now: float, member: M) -> None:
        self.backlog += 1
        member.backlog += 1

    def remove_backlog(self, now: float, member: M) -> None:
        self.backlog -= 1
        member.backlog -= 1
        assert self.backlog == member.backlog >= 0, f"{member!r}: {member.backlog} left of {self.backlog}"

    def front(self) -> M | None:
        """The member, if it has work and is not skipped."""
        return self._member if self.backlog and not self._skipped else None

    def members_by_turn(self) -> tuple[list[M], list[M], list[M], list[Entry[M]]]:
        return [], [self._member] if self.backlog else [], [], []

    def charge(self, member: M, cost: float) -> None:
        member.unsettled += cost

    def credit(self, now: float, member: M) -> float:
        return inf

    def serve_at_once(self, now: float, member: M, cost: float) -> bool:
        member.unsettled += cost
        return True

    def settle(self, now: float, member: M, refund: float, ended: float = 0.0) -> None:
        member.unsettled -= refund + ended

    def inherit_debt(self, now: float, member: M, owed: float) -> None:
        """Nothing to do: there is no other member to be fair to."""

    def skip(self, member: M) -> None:
        self._skipped = True

    def unskip(self, started: bool) -> None:
        self._skipped = False

    def reweigh(self, member: M, weight: float) -> None:
        """Set its weight, for when other classes come."""
        member.weight = weight

    def joined(self, now: float) -> Ring[M]:
        """A ring with this member and its backlog."""
        ring: Ring[M] = Ring(self.quantum)
        waiting, self._member.backlog = self._member.backlog, 0
        for _ in range(waiting):
            ring.add_backlog(now, self._member)
        return ring

    def __repr__(self) -> str:
        return f"<SingleClass {self._member!r}>"
