"""A ring of one class: there is no order to decide.

Most routers have one class, and then the ring of classes has nothing to decide. It is asked all the same, four times a
request, so this stands in its place: the same questions, without deficits. When a second class is configured a ring
takes over, in which the first class begins with a quantum, as every newcomer does.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from services.core.ring import Entry, Ring
from services.core.schedulable import Schedulable

M = TypeVar("M", bound=Schedulable)


class SingleClass(Generic[M]):
    """The one member of a ring. `backlog` is its own."""

    __slots__ = ("_aside", "_member", "backlog", "quantum")

    def __init__(self, quantum: float, member: M) -> None:
        self.quantum = quantum
        self.backlog = 0
        self._member = member
        self._aside = False

    def add_backlog(self, now: float, member: M) -> None:
        """It can start one request more."""
        self.backlog += 1
        member.backlog += 1

    def remove_backlog(self, now: float, member: M) -> None:
        """It has one request less to start."""
        self.backlog -= 1
        member.backlog -= 1
        assert self.backlog == member.backlog >= 0, f"{member!r}: {member.backlog} left of {self.backlog}"

    def front(self) -> M | None:
        """It, if it has work and is not put aside."""
        return self._member if self.backlog and not self._aside else None

    def lines(self) -> tuple[list[M], list[M], list[M], list[Entry[M]]]:
        """As a ring's: it has its turn, or nothing to do."""
        return [], [self._member] if self.backlog else [], [], []

    def charge(self, member: M, cost: float) -> None:
        """It starts a request of this cost."""
        member.unsettled += cost

    def settle(self, now: float, member: M, refund: float, ended: float = 0.0) -> None:
        """A charge was too high by `refund`; `ended` is no longer in flight."""
        member.unsettled -= refund + ended

    def skip(self, member: M) -> None:
        """Nothing of it can start now."""
        self._aside = True

    def unskip(self, started: bool) -> None:
        """The decision is made."""
        self._aside = False

    def reweigh(self, member: M, weight: float) -> None:
        """Its weight, for when others come."""
        member.weight = weight

    def joined(self, now: float) -> Ring[M]:
        """A ring with this member in it, as it is: others may come."""
        ring: Ring[M] = Ring(self.quantum)
        waiting, self._member.backlog = self._member.backlog, 0
        for _ in range(waiting):
            ring.add_backlog(now, self._member)
        return ring

    def __repr__(self) -> str:
        return f"<SingleClass {self._member!r}>"
