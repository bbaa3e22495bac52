"""Retry hints: a rejection reserves capacity for the retry, so that clients do not all return at once.

    slot    = max(now + 0.05 s, now + queued_work / (0.5 * rate), free_at)
    free_at = slot + work / (0.5 * rate)
    hint    = (slot - now) * (1 + 0.2 * random())

`free_at` is the whole state: the virtual clock of a leaky bucket (GCRA, ITU-T I.371). Jitter only delays, so it cannot
break the bounds, which are in docs/architecture/mechanisms/retries-and-hints.md. A second virtual clock limits each
tenant to half of the shared reservations, 12.5 s. Beyond that its hint is the end, and nothing is reserved. So in any T
seconds one tenant reserves at most 0.5 * rate * (12.5 + T) or a single request, and alone delays no other by more than
that. Breakwater (Cho et al., OSDI 2020) gives credits for the same reason; here a credit is a time, since clients keep
no connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable

SHARE = 0.5
"""The part of the capacity that is reserved for returning clients."""
JITTER = 0.2
SOONEST_S = 0.05
LATEST_S = 30.0
MAX_PER_TENANT_S = 0.5 * LATEST_S / (1 + JITTER)
"""How far ahead in seconds one tenant may fill the shared reservations."""


class RetryReservations:
    """The reservations of one scope (a tenant or a pool): call `hint` at each rejection."""

    __slots__ = ("_free_at", "_shared_at", "hinted_total")

    def __init__(self) -> None:
        self._free_at = -math.inf
        self._shared_at = -math.inf  # when the tenant's part of the shared reservations will have drained
        self.hinted_total = 0

    def hint(
        self,
        now: float,
        queued_work: float,
        work: float,
        rate: float,
        random: Callable[[], float],
        own: RetryReservations | None = None,
    ) -> float:
        """Reserve `work`; the seconds until the client should retry. Without capacity: the latest possible hint.

        `own` are the tenant's own reservations, where these are shared by all tenants.
        """
        self.hinted_total += 1
        latest = now + LATEST_S / (1 + JITTER)
        slot = latest
        if rate > 0 and (own is None or own._may_share(now, work / (SHARE * rate))):
            promised = SHARE * rate
            slot = min(max(now + SOONEST_S, now + queued_work / promised, self._free_at), latest)
            free_at = self._free_at = min(slot + work / promised, latest)
            assert now < slot <= free_at <= latest, f"at {now:g} a slot at {slot:g}, booked until {free_at:g}: {self!r}"
        wait_s = (slot - now if slot - now > SOONEST_S else SOONEST_S) * (1 + JITTER * random())
        return wait_s if wait_s < LATEST_S else LATEST_S

    def _may_share(self, now: float, takes_s: float) -> bool:
        """Whether the tenant may reserve so much more of the shared reservations. If so, it counts as reserved."""
        ahead_s = self._shared_at - now
        if ahead_s <= 0:
            self._shared_at = now + takes_s
            return True
        if ahead_s + takes_s > MAX_PER_TENANT_S:
            return False
        self._shared_at += takes_s
        return True

    def __repr__(self) -> str:
        return f"<RetryReservations free at {self._free_at:g}, {self.hinted_total} hinted>"
