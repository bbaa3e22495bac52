"""Many clients of unequal size: client k of n asks in proportion to 1 / k ** skew (Zipf's law), each in its own bursts.

Published: of the 2,412 clients of one model, 29 sent 90 % of its requests (ServeGen, arXiv 2505.09999). A skew of 1.6
is near that; with 0, all are alike. What makes such traffic bursty is its few large clients: many small
ones that are independent of each other add up to something smooth, however bursty each is.
"""

from __future__ import annotations

from dataclasses import replace

from loadtests.load.plan import MAX_TENANTS, Step, Tenant, within

MAX_SKEW = 4.0


def shares(clients: int, skew: float) -> list[float]:
    """What each client asks of all, the greatest first."""
    weights = [rank**-skew for rank in range(1, clients + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def population(tenant: Tenant, clients: int, skew: float) -> tuple[Tenant, ...]:
    """This tenant's traffic as that of so many, `NAME-1` the greatest of them."""
    within("clients", clients, 1, MAX_TENANTS)
    within("skew", skew, 0, MAX_SKEW)
    if not isinstance(clients, int):
        raise ValueError(f"clients is {clients!r}; a whole number was expected")
    return tuple(_client(tenant, rank, share) for rank, share in enumerate(shares(clients, skew), 1))


def _client(tenant: Tenant, rank: int, share: float) -> Tenant:
    steps = tuple(Step(step.from_s, step.per_s * share) for step in tenant.steps)
    return replace(tenant, name=f"{tenant.name}-{rank}", steps=steps)
