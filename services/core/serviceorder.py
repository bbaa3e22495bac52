"""The order in which a ring would visit its members, as it stands now. Read only: looking changes nothing.

A member's place is where it stands, unless what it started there has used its turn up: a ring notices that on its next
visit, and sends the member to a later round. Here it is listed where it will be sent. A member that comes, goes or is
settled meanwhile changes the order, as it does in the ring.

Cost: O(1) for each member that is listed, and one pass over those that owe for several rounds, if it comes to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain, islice
from typing import TypeVar

from services.core.ring import DUST, Entry, Ring
from services.core.schedulable import LATER, NEW, NEXT, NOW, RingPosition, Schedulable
from services.core.singleclass import SingleClass

M = TypeVar("M", bound=Schedulable)
LAST = 2**62
"""A member that will be sent back stands behind those of the same round that wait already."""


def service_order(ring: Ring[M] | SingleClass[M], most: int) -> list[tuple[M, RingPosition]]:
    """The first so many to be visited, and where each of them stands."""
    if isinstance(ring, SingleClass):
        return [(member, NOW) for member in ring.lines()[1]]
    return list(islice(_visits(ring, most), most))


def _visits(ring: Ring[M], most: int) -> Iterator[tuple[M, RingPosition]]:
    new, now, following, later = ring.lines()
    spent: list[M] = []
    for members, turn in ((new, NEW), (now, NOW)):
        for member in members:
            if _is_served(ring, member, ring.given):
                yield member, turn
            else:
                spent.append(member)
    owing: list[Entry[M]] = []
    for member in chain(following, spent):
        if _is_served(ring, member, ring.given + ring.quantum):
            yield member, NEXT
        else:
            owing.append((_due(ring, member), LAST + len(owing), member))
    for _, _, member in nsmallest(most, chain(later, owing)):
        yield member, LATER


def _is_served(ring: Ring[M], member: M, given: float) -> bool:
    """Whether it starts something when it is visited, the ring having given so much by then."""
    return member.deficit + (given - member.since) * member.weight > DUST * ring.quantum * member.weight


def _due(ring: Ring[M], member: M) -> float:
    """How much the ring must have given for it to have paid."""
    return member.since + DUST * ring.quantum - member.deficit / member.weight
