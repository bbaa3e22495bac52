"""The faults, the component of each, and how often each occurs: a list of sixty, shuffled by a seed.

So sixty faults are each of them once. Fewer faults begin with one for each component.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from random import Random


class What(StrEnum):
    KILL = "kill -9"
    FREEZE = "SIGSTOP, SIGCONT"
    RESET = "connections reset"
    CUT = "answers cut"
    SLOW = "latency"
    HOLD = "wire holds all traffic"
    GONE = "connections refused"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    part: str
    what: What


HOLDS_S = {
    What.KILL: 1.0,  # until it is started again
    What.FREEZE: 3.0,
    What.RESET: 0.5,
    What.CUT: 1.0,
    What.SLOW: 2.0,
    What.HOLD: 3.0,
    What.GONE: 1.0,
}
"""Seconds of each fault. Freezes last longer than a deadline, so a request that only waits for one would hang."""

WORKER, RETRIEVAL, POSTGRES, VALKEY, ROUTER, CLIENTS = (
    "worker", "retrieval", "PostgreSQL", "Valkey", "router", "clients' wire",
)  # fmt: skip
TIMES: dict[str, dict[What, int]] = {
    WORKER: {
        What.KILL: 6, What.FREEZE: 4, What.RESET: 4, What.CUT: 3, What.SLOW: 3, What.HOLD: 2, What.GONE: 2,
    },
    RETRIEVAL: {What.KILL: 3, What.FREEZE: 2, What.RESET: 2, What.CUT: 1, What.SLOW: 1, What.HOLD: 1},
    POSTGRES: {What.KILL: 2, What.FREEZE: 2, What.RESET: 2, What.SLOW: 1, What.HOLD: 1},
    VALKEY: {What.KILL: 2, What.FREEZE: 2, What.RESET: 2, What.SLOW: 1, What.HOLD: 1},
    ROUTER: {What.KILL: 4, What.FREEZE: 2},
    CLIENTS: {What.RESET: 2, What.CUT: 1, What.SLOW: 1},
}  # fmt: skip
PLANNED = tuple(
    PlannedFault(part, what) for part, times in TIMES.items() for what, count in times.items() for _ in range(count)
)  # fmt: skip


def deal(seed: int) -> Iterator[PlannedFault]:
    """Faults without end: one for each component, then all the others, then the whole list again and again."""
    chance = Random(seed)
    first = [chance.choice([card for card in PLANNED if card.part == part]) for part in TIMES]
    rest = list(PLANNED)
    for card in first:
        rest.remove(card)
    for some in (first, rest):
        chance.shuffle(some)
    yield from first
    yield from rest
    again = list(PLANNED)
    chance.shuffle(again)
    yield from cycle(again)


def kills(seed: int) -> Iterator[PlannedFault]:
    return cycle([PlannedFault(WORKER, What.KILL)])


def frozen_and_killed(seed: int) -> Iterator[PlannedFault]:
    return cycle([PlannedFault(WORKER, What.FREEZE), PlannedFault(WORKER, What.KILL)])
