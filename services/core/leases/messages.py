"""What routers and workers send one another about slots. Values are absolute: a repeated or lost message is harmless.

A *stamp* orders the messages of one sender: when its process started, in milliseconds since 1970 (its *epoch*), and a
sequence number from then on. A receiver ignores a message whose stamp is not above the last one, so duplicates and
reordering do nothing, and a process that has been replaced cannot speak for its successor.

Demand and credit travel with requests and answers, as in Breakwater (Cho et al., OSDI 2020).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

Stamp = tuple[int, int]
"""(epoch, sequence number)"""
NEVER: Stamp = (0, 0)
"""Below every stamp: nothing was received."""
MAX_CLASSES = 32
"""Classes in one message."""


class Want(NamedTuple):
    """What a router has waiting in one class, that it could start at this worker now."""

    class_name: str
    requests: int
    """How many more slots it could use."""
    light: int
    """Of these, requests of tenants that ask for less than their share of the pool."""
    level: float
    """Of the router in this class, in one measure for all routers, in tokens per unit of weight (`level.py`)."""
    turn: float
    """Of the class, in one measure for all routers, in tokens per unit of weight."""


class Ask(NamedTuple):
    """Router to worker: with every request, and alone."""

    router: str
    stamp: Stamp
    ack: Stamp
    """The stamp of the last grant that it received from this worker."""
    keep: int | None = None
    """It gives back what it has above this. It holds itself to that with every grant that does not echo this ask or a
    later one, so the worker may lend these slots at once. None: it gives nothing back.
    """
    wants: tuple[Want, ...] = ()
    quantum: float = 0.0
    """Of its rings, in tokens per round and unit of weight."""
    ttl_s: float = 0.0
    """How long it wishes the lease to last, in seconds."""


class Grant(NamedTuple):
    """Worker to router: in the answer to an ask, at the end of a request, and whenever a slot is lent."""

    stamp: Stamp
    echo: Stamp
    """The stamp of the last ask that the worker received."""
    may: int
    """How many requests of this router may be in flight at this worker, those in flight included."""
    ttl_s: float
    """The lease ends this long after the ask with the stamp `echo` was sent."""
    slots: int
    """Slots of the worker now, over all routers."""
    recall: bool = False
    """Slots that are not in use are to be given back at once: another router waits, or the worker has shrunk."""
    lowest: tuple[tuple[str, float], ...] = ()
    """By class: the lowest level of the other routers that wait here."""

    def lowest_of(self, class_name: str) -> float:
        """The lowest level of another router that waits in this class; infinity if none does."""
        return next((level for name, level in self.lowest if name == class_name), inf)
