"""A tenant's rate over several routers: the bound in the short run, exact in the long run."""

from __future__ import annotations

import pytest

from services.core.leases.exchange import UsageExchange
from services.core.leases.times import EXCHANGE_S
from services.router.tenancy.rates import Debtor
from tests.core.leases.rig import Site

RATE, ROUTERS = 50.0, 4


@pytest.mark.parametrize("asked_per_s", [60.0, 200.0, 2000.0])
def test_a_rate_holds_over_all_routers_within_its_bound(asked_per_s: float) -> None:
    """In t seconds at most burst + rate * t + (R - 1) * min(burst + rate * d, demand * d), and the excess is paid back.

    d, how late a router knows what another took, is at most two exchanges. Each router's bucket refills meanwhile.
    """
    sites, store = [Site(f"r{n}", {"a": 1.0}) for n in range(ROUTERS)], UsageExchange("x")
    limits = [Debtor(RATE) for _ in sites]
    for site in sites:
        site.queue("a")
        for _ in range(2):
            site.ledger.receive(0.0, store.call(0.0, site.ledger.report(0.0, ())))
    taken, now, step_s, exchanged = 0, 0.0, 1.0 / asked_per_s, [0.0] * ROUTERS
    late_s = 2 * EXCHANGE_S
    excess = (ROUTERS - 1) * min(RATE + RATE * late_s, asked_per_s * late_s)
    while now < 20.0:
        now += step_s
        place = round(now / step_s) % ROUTERS
        site, limit = sites[place], limits[place]
        if limit.wait_s(now, 1.0) <= 0:
            limit.charge(now, 1.0)
            site.ledger.add_taken(site.drr.tenants["a"].flows["default"], 1, 0.0)
            taken += 1
        for other, each in enumerate(sites):
            if now - exchanged[other] >= EXCHANGE_S:
                exchanged[other] = now
                for used in each.ledger.receive(now, store.call(now, each.ledger.report(now, ()))):
                    limits[other].charge(now, float(used.requests))
        assert taken <= limits[0].burst + RATE * now + excess + 1.0
    assert taken == pytest.approx(RATE * 20.0 + RATE, abs=excess + 1.0)
    assert taken >= min(RATE, asked_per_s) * 20.0 * 0.98
