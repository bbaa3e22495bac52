"""When to come back: a refusal is an appointment, not a shrug.

Telling each refused client how long the queue takes to drain brings all of them back together, to be refused again.
So the hint reserves. The capacity of a scope (`rate`, in work per second) is thought of as two halves: one drains what
is queued, the other serves those who were told to come back. A refusal takes the first appointment that is free once
the queue is gone:

    slot    = max(now + 0.05 s, now + queued_work / (0.5 * rate), free_at)
    free_at = slot + work / (0.5 * rate)
    hint    = (slot - now) * (1 + 0.2 * random())

`free_at` is the whole state. It is the virtual clock of a leaky bucket (GCRA, ITU-T I.371): the work that is booked
and not yet back is (free_at - now) * 0.5 * rate, and drains with time by itself. Jitter only ever delays, so that it
cannot break the bound. Breakwater (Cho et al., OSDI 2020) hands out credits for the same reason; here the credit is a
time, since the client is a stranger that keeps no connection.

Bounds. Slots never overlap: if all clients obey, the work that is back by t after a crowd was refused at 0 is at most
0.5 * rate * t + that of one request. More queued work never gives an earlier slot. A hint lies in [0.05, 30] s.
The last holds against the first: the book ends after 25 s (30 with jitter). A crowd that is larger than half the
capacity of 25 s shares the last five seconds: under lasting overload no hint can promise more than the capacity.

The book of all is open to each, so one tenant that floods it could make all others come back late. Of each it takes
half a book at most: a second virtual clock, kept in the tenant's own book, is not let further ahead than 12.5 s, and
what would move it further is told to come back at the end, with nothing booked. So what one tenant books in any T
seconds is at most 0.5 * rate * (12.5 + T) or a single request, and it alone never makes another wait longer than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

SHARE = 0.5
"""The part of the capacity that is promised to those who were told to come back."""
JITTER = 0.2
SOONEST_S = 0.05
LATEST_S = 30.0
MOST_OF_ONE_S = 0.5 * LATEST_S / (1 + JITTER)
"""As far ahead as one tenant may fill the book of all."""


class RetryReservations:
    """The book of one scope (a tenant, a class, or all): ask it for a hint at each refusal."""

    __slots__ = ("_free_at", "_shared_at", "hinted_total")

    def __init__(self) -> None:
        self._free_at = -math.inf
        self._shared_at = -math.inf  # when what its tenant booked in the book of all will have drained
        self.hinted_total = 0

    def hint(
        self,
        now: float,
        queued_work: float,
        work: float,
        rate: float,
        random: Callable[[], float],
        guest: RetryReservations | None = None,
    ) -> float:
        """Book `work` and say in how many seconds to come back. With no capacity at all: as late as we ever say.

        `guest` is the own book of the tenant, where this one is shared by all.
        """
        self.hinted_total += 1
        latest = now + LATEST_S / (1 + JITTER)
        slot = latest
        if rate > 0 and (guest is None or guest._may_share(now, work / (SHARE * rate))):
            promised = SHARE * rate
            slot = min(max(now + SOONEST_S, now + queued_work / promised, self._free_at), latest)
            free_at = self._free_at = min(slot + work / promised, latest)
            assert now < slot <= free_at <= latest, f"at {now:g} a slot at {slot:g}, booked until {free_at:g}: {self!r}"
        wait_s = (slot - now if slot - now > SOONEST_S else SOONEST_S) * (1 + JITTER * random())
        return wait_s if wait_s < LATEST_S else LATEST_S

    def _may_share(self, now: float, takes_s: float) -> bool:
        """Whether its tenant may book so much more in the book of all. If so, it counts as booked."""
        ahead_s = self._shared_at - now
        if ahead_s <= 0:
            self._shared_at = now + takes_s
            return True
        if ahead_s + takes_s > MOST_OF_ONE_S:
            return False
        self._shared_at += takes_s
        return True

    def __repr__(self) -> str:
        return f"<RetryReservations free at {self._free_at:g}, {self.hinted_total} hinted>"
