"""The order in which a ring would visit its members as things stand. Read only: looking changes nothing.

A member that has used up its turn is listed in the later round to which the ring will send it at its next visit.
Arrivals, departures and settlements change the order, as in the ring.

Cost: O(1) per listed member, and one pass over the members that owe several rounds, if the list gets to them.
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
"""The order number of members that will be sent back: behind those that wait for the same round already."""


def service_order(ring: Ring[M] | SingleClass[M], limit: int) -> list[tuple[M, RingPosition]]:
    """The first `limit` members to be visited, each with its position."""
    if isinstance(ring, SingleClass):
        return [(member, NOW) for member in ring.members_by_turn()[1]]
    return list(islice(_visits(ring, limit), limit))


def _visits(ring: Ring[M], limit: int) -> Iterator[tuple[M, RingPosition]]:
    new, now, following, later = ring.members_by_turn()
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
    for _, _, member in nsmallest(limit, chain(later, owing)):
        yield member, LATER


def _is_served(ring: Ring[M], member: M, given: float) -> bool:
    """Whether it can start a request when it is visited, at this value of the ring's `given`."""
    return member.deficit + (given - member.since) * member.weight > DUST * ring.quantum * member.weight


def _due(ring: Ring[M], member: M) -> float:
    """The ring's `given` at which its deficit becomes positive."""
    return member.since + DUST * ring.quantum - member.deficit / member.weight
