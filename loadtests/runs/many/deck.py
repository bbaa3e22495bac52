"""The faults of a run: how often each kind occurs, how long it lasts, and the order that a seed gives them.

A short run begins with a different kind each time, until each has occurred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from random import Random

from loadtests.runs.many.addresses import Net


class What(StrEnum):
    ROUTER_KILLED = "router killed and restarted"
    ROUTER_FROZEN = "router frozen"
    ROUTER_UNPLUGGED = "router's cable out"
    WORKER_FROZEN = "worker frozen"
    WORKER_UNPLUGGED = "worker's cable out"
    STORE_KILLED = "store killed and restarted empty"
    STORE_FROZEN = "store frozen"
    STORE_UNPLUGGED = "store's cable out"
    TOWARDS_CUT = "router to worker cut"
    BACK_CUT = "worker to router cut"
    LINK_CUT = "router and worker cut both ways"
    LINK_RESET = "router to worker reset"


TIMES: dict[What, int] = {
    What.ROUTER_KILLED: 8, What.ROUTER_FROZEN: 8, What.ROUTER_UNPLUGGED: 4,
    What.WORKER_FROZEN: 6, What.WORKER_UNPLUGGED: 4,
    What.STORE_KILLED: 4, What.STORE_FROZEN: 4, What.STORE_UNPLUGGED: 2,
    What.TOWARDS_CUT: 5, What.BACK_CUT: 5, What.LINK_CUT: 5, What.LINK_RESET: 5,
}  # fmt: skip
HOLDS_S: dict[What, float] = {
    What.ROUTER_KILLED: 0.5, What.ROUTER_FROZEN: 2.0, What.ROUTER_UNPLUGGED: 1.5,
    What.WORKER_FROZEN: 1.5, What.WORKER_UNPLUGGED: 1.5,
    What.STORE_KILLED: 0.5, What.STORE_FROZEN: 3.0, What.STORE_UNPLUGGED: 2.5,
    What.TOWARDS_CUT: 1.5, What.BACK_CUT: 1.5, What.LINK_CUT: 1.5, What.LINK_RESET: 1.5,
}  # fmt: skip
"""Seconds of each fault: longer than a lease, and those of the store longer than figures of the exchange are fresh. A
killed process is started again after these seconds."""

OF_ROUTERS = (What.ROUTER_KILLED, What.ROUTER_FROZEN, What.ROUTER_UNPLUGGED)
OF_WORKERS = (What.WORKER_FROZEN, What.WORKER_UNPLUGGED)
OF_THE_STORE = (What.STORE_KILLED, What.STORE_FROZEN, What.STORE_UNPLUGGED)
OF_LINKS = (What.TOWARDS_CUT, What.BACK_CUT, What.LINK_CUT, What.LINK_RESET)
ALL = tuple(what for what, count in TIMES.items() for _ in range(count))


@dataclass(frozen=True, slots=True)
class Fault:
    """`router`, `worker`: the names of those it is done to; both for a link, neither for the store."""

    what: What
    router: str = ""
    worker: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.what.value, self.router, self.worker)))

    def may_hit(self, router: str, workers: Sequence[str]) -> bool:
        """Whether a request of this router may feel it, which was at these workers; none: they are not known."""
        if not self.router and not self.worker:
            return False
        return self.router in ("", router) and (not self.worker or not workers or self.worker in workers)


def deal(seed: int, count: int, net: Net) -> tuple[Fault, ...]:
    """`count` faults: one of each kind, then all the others, then the whole list again and again."""
    chance = Random(f"deck:{seed}")
    return tuple(_aimed(what, net, chance) for what in islice(_kinds(chance), count))


def _kinds(chance: Random) -> Iterator[What]:
    first, rest = list(TIMES), list(ALL)
    for what in first:
        rest.remove(what)
    again = list(ALL)
    for some in (first, rest, again):
        chance.shuffle(some)
    yield from first
    yield from rest
    yield from cycle(again)


def _aimed(what: What, net: Net, chance: Random) -> Fault:
    router = chance.choice(net.routers).name if what in (*OF_ROUTERS, *OF_LINKS) else ""
    worker = chance.choice(net.workers).name if what in (*OF_WORKERS, *OF_LINKS) else ""
    return Fault(what, router, worker)


def groups(faults: Sequence[Fault], size: int) -> Iterator[Sequence[Fault]]:
    """The faults in their order, `size` at a time."""
    yield from (faults[first : first + size] for first in range(0, len(faults), size))
