"""Durations of leases, in seconds. A router and a worker need equal rates of their clocks, not equal times.

    router   uses a lease until   (the ask was sent)     + ttl * (1 - DRIFT)
    worker   keeps it until       (the ask was received) + ttl * (1 + DRIFT)

An ask is received after it was sent, so the router stops first as long as the clocks' rates differ by less than 2 %
(Gray and Cheriton, *Leases*, SOSP 1989).
"""

from __future__ import annotations

MIN_TTL_S, MAX_TTL_S = 0.75, 3.0
"""How long a lease lasts without an ask: short where few workers are held, since a frozen router idles its slots."""
ASKS_PER_TTL = 3
"""Asks that may be lost in a row before a lease ends is one less."""
HELD_PER_S = 500.0
"""Asks a second of one router, about: with more workers held, leases last longer."""
DRIFT = 0.01
WANT_TTL_S = 0.5
"""A want that is not repeated is forgotten."""
WANT_EVERY_S = 0.2
"""A want is repeated so often."""
LINGER_S = 1.0
"""An idle slot that nobody else waits for is given back after this."""
EXCHANGE_S = 0.2
"""Between two exchanges of a router."""


def ttl_s(held: int) -> float:
    """How long the leases of a router with slots at `held` workers should last."""
    return min(MAX_TTL_S, max(MIN_TTL_S, ASKS_PER_TTL * held / HELD_PER_S))
