"""Whose turn a free slot is, among the routers that wait for it at one worker.

    class    the one that is furthest behind in the ring of classes
    light    of its routers within LIGHT_QUANTA of the lowest level: those with requests of light tenants
    level    else those within a quantum of the lowest
    share    of these, in proportion to what they want

A request carries the service that its flow got elsewhere, as in DSFQ (Wang and Merchant, FAST 2007) and dmClock (Gulati
et al., OSDI 2010): here the router's level does. Within a quantum the level decides nothing, so that slots do not move
for rounding: a move costs a round trip. A light tenant asks for less
than its share of the pool, so its level hardly counts: levels are as old as the last exchange, and it would wait for
heavy ones whose level is old. It counts for a tenant about at its share, which may be taken for light for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.core.leases.messages import Want

LIGHT_QUANTA = 8.0
"""How far a router with requests of light tenants may be ahead of the lowest level, and still be first."""


class Claim(NamedTuple):
    """A router that waits for a slot in one class."""

    router: str
    promised: int
    """Slots that this worker has promised to it."""
    wanted: int
    """Requests that it wants to start, over all classes: at least one, but of a router whose request has just ended."""
    want: Want


def first(claims: Sequence[Claim], quantum: float) -> Claim:
    """Who gets the next slot. Raises ValueError if nobody waits."""
    turn = min(each.want.turn for each in claims)
    name = next(each.want.class_name for each in claims if each.want.turn == turn)
    of_class = [each for each in claims if each.want.class_name == name]
    lowest = min(each.want.level for each in of_class)
    light = [each for each in of_class if each.want.light > 0 and each.want.level <= lowest + LIGHT_QUANTA * quantum]
    return min(light or [each for each in of_class if each.want.level <= lowest + quantum], key=_share)


def keeps(own: Claim, other: Claim, quantum: float) -> bool:
    """Whether a router keeps a slot in which its request has just ended, or `other`, the first of the others, gets it.

    `own.promised` still counts the slot.
    """
    mine, its = own.want, other.want
    if mine.class_name != its.class_name:
        return mine.turn <= its.turn + quantum
    ahead = mine.level - its.level
    if abs(ahead) > LIGHT_QUANTA * quantum:
        return ahead < 0
    if (mine.light > 0) != (its.light > 0):
        return mine.light > 0
    if not mine.light and abs(ahead) > quantum:
        return ahead < 0
    left = (own.promised - 1) / (own.promised + own.wanted)
    return left <= (other.promised + 1) / (other.promised + other.wanted)


def _share(claim: Claim) -> tuple[float, float]:
    """How much of what it could use it has; the lower level decides between equals."""
    return claim.promised / (claim.promised + claim.wanted), claim.want.level
