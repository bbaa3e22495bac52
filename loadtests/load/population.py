"""Many clients of unequal size: client k of n sends in proportion to 1 / k ** skew (Zipf's law), in its own bursts.

Published: of one model's 2,412 clients, 29 sent 90 % of the requests (ServeGen, arXiv 2505.09999). A skew of 1.6 is
close to that; with 0 all clients are equal. The few large clients make such traffic bursty: many small independent
clients add up to a smooth stream.
"""

from __future__ import annotations

from dataclasses import replace

from loadtests.load.plan import MAX_TENANTS, Step, Tenant
from loadtests.scenarios.bounds import within

MAX_SKEW = 4.0


def shares(clients: int, skew: float) -> list[float]:
    """Each client's share of the requests, the greatest first."""
    weights = [rank**-skew for rank in range(1, clients + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def population(tenant: Tenant, clients: int, skew: float) -> tuple[Tenant, ...]:
    """Split a tenant into `clients` tenants; `NAME-1` is the greatest."""
    within("clients", clients, 1, MAX_TENANTS)
    within("skew", skew, 0, MAX_SKEW)
    if not isinstance(clients, int):
        raise ValueError(f"clients is {clients!r}; a whole number was expected")
    return tuple(_client(tenant, rank, share) for rank, share in enumerate(shares(clients, skew), 1))


def _client(tenant: Tenant, rank: int, share: float) -> Tenant:
    steps = tuple(Step(step.from_s, step.per_s * share) for step in tenant.steps)
    return replace(tenant, name=f"{tenant.name}-{rank}", steps=steps)
