"""What a router reports, and counts of other routers: each token once, whatever is lost."""

from __future__ import annotations

from collections import defaultdict
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.leases.exchange import UsageAnswer, UsageExchange
from services.core.leases.messages import Want
from services.core.leases.usage import FORGET_S, MAX_ROWS
from services.core.stats import DEMAND_S
from tests.core.leases.rig import Site

TENANTS = {"a": 1.0, "b": 2.0}


def exchange(site: Site, store: UsageExchange, now: float = 0.0) -> UsageAnswer:
    answer = store.call(now, site.ledger.report(now, ()))
    site.ledger.receive(now, answer)
    return answer


def elsewhere(site: Site, tenant: str) -> float:
    """What other routers served, as the last answer said."""
    seen = site.ledger._entries[tenant, "default"].seen
    return 0.0 if seen is None else seen.served


def pair() -> tuple[Site, Site, UsageExchange]:
    """Two routers that know both tenants, and have begun."""
    sites, store = (Site("r0", TENANTS), Site("r1", TENANTS)), UsageExchange("x")
    for site in sites:
        for tenant in TENANTS:
            site.queue(tenant)
        site.serve(2)
    settle(sites, store)
    return *sites, store


def settle(sites: tuple[Site, ...], store: UsageExchange) -> None:
    """All of them report what they have, and charge what the others have."""
    for _ in range(4):
        for site in sites:
            exchange(site, store)


def test_what_was_served_elsewhere_counts_once() -> None:
    here, there, store = pair()
    exchange(here, store)
    before = elsewhere(here, "a")
    there.queue("a", 3)
    there.serve(3)
    exchange(there, store)
    here.queue("a", 1)
    for _ in range(2):
        exchange(here, store)
        assert elsewhere(here, "a") == pytest.approx(before + 30.0)
    assert here.charged("a") == 10.0, "its own charges are its own"


def test_a_refund_elsewhere_counts_here() -> None:
    here, there, store = pair()
    exchange(here, store)
    there.queue("a", 1, cost=50.0)
    request = there.drr.next(0.0, "default")
    assert request is not None
    here.queue("a")
    exchange(there, store)
    exchange(here, store)
    high = elsewhere(here, "a")
    there.drr.settle(0.0, request, 10.0)
    exchange(there, store)
    exchange(here, store)
    assert elsewhere(here, "a") == pytest.approx(high - 40.0)


def test_a_tenant_that_was_served_elsewhere_waits_until_the_others_have_had_as_much() -> None:
    here, there, store = pair()
    here.queue("a", 40)
    here.queue("b", 40)
    there.queue("a", 40)
    for turn in range(5):
        for site in (here, there):
            site.ledger.receive(0.2 * turn, store.call(0.2 * turn, site.ledger.report(0.2 * turn, waits(site))))
        if turn == 1:
            there.serve(12)
    assert here.serve(10, 1.0) == "b" * 10
    assert "a" in here.serve(30, 1.0)


def waits(site: Site) -> tuple[Want, ...]:
    return site.level.wants(0.0, lambda flow: False)


def test_an_answer_that_is_lost_counts_nothing_twice() -> None:
    here, there, store = pair()
    exchange(here, store)
    here.queue("a")
    before = elsewhere(here, "a")
    there.queue("a", 2)
    there.serve(1)
    lost = store.call(0.0, there.ledger.report(0.0, ()))
    there.serve(1)
    exchange(there, store)
    exchange(there, store)
    there.ledger.receive(0.0, lost)
    exchange(here, store)
    assert elsewhere(here, "a") == pytest.approx(before + 20.0)


def test_a_store_that_restarts_empty_counts_nothing_twice() -> None:
    here, there, store = pair()
    exchange(here, store)
    here.queue("a")
    there.queue("a", 2)
    there.serve(1)
    exchange(there, store)
    exchange(here, store)
    store = UsageExchange("y")
    for _ in range(2):
        exchange(there, store)
        exchange(here, store)
    assert elsewhere(here, "a") == 0.0
    there.serve(1)
    exchange(there, store)
    exchange(here, store)
    assert elsewhere(here, "a") == pytest.approx(10.0)


def test_a_class_is_charged_for_tenants_that_this_router_does_not_know() -> None:
    classes, of_class = {"gold": 8.0, "tin": 1.0}, {"x": "tin", "y": "tin", "g": "gold"}
    here, there = (Site(name, dict.fromkeys("gxy", 1.0), classes=classes, of_class=of_class) for name in ("r0", "r1"))
    store = UsageExchange("x")
    here.queue("g", 50)
    here.queue("x", 50)
    there.queue("y", 50)
    settle((here, there), store)
    node = here.pool.nodes["tin"]
    before = here.pool.classes.deficit_at(0.0, node)  # type: ignore[union-attr]
    there.serve(4)
    exchange(there, store)
    exchange(here, store)
    assert here.pool.classes.deficit_at(0.0, node) == pytest.approx(before - 40.0)  # type: ignore[union-attr]


def test_it_knows_what_other_routers_were_asked_for_and_whose_weight_is_active_there() -> None:
    here, there, store = pair()
    there.queue("b", 30, now=1.0)
    here.queue("a", 3, now=1.0)
    exchange(there, store, 1.0)
    exchange(here, store, 1.0)
    flow = here.drr.tenants["a"].flows["default"]
    assert here.ledger.elsewhere.active_weight(flow.node) == pytest.approx(3.0)
    assert here.ledger.elsewhere._asked["a", "default"] == pytest.approx(10.0 / DEMAND_S * exp(-1.0 / DEMAND_S))


def test_a_tenant_that_was_away_for_long_begins_anew() -> None:
    here, there, store = pair()
    exchange(here, store)
    now = FORGET_S + 5.0
    there.queue("a", 9, now=now)
    there.serve(9, now)
    exchange(there, store, now)
    here.queue("a", now=now)
    for _ in range(2):
        exchange(here, store, now)
    flow = here.drr.tenants["a"].flows["default"]
    assert flow.node.flows.deficit_at(now, flow) >= 0.0


def test_what_rate_limits_took_elsewhere_is_returned_to_be_charged() -> None:
    here, there, store = pair()
    exchange(here, store)
    flow = there.drr.tenants["a"].flows["default"]
    there.ledger.add_taken(flow, 2, 300.0)
    exchange(there, store)
    here.queue("a")
    used = here.ledger.receive(0.0, store.call(0.0, here.ledger.report(0.0, ())))
    assert [(each.tenant, each.requests, each.tokens) for each in used] == [("a", 2, 300.0)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["serve", "call", "lose", "late", "restart"]),
        st.integers(0, 2),
        st.sampled_from(list(TENANTS)),
        st.floats(0.0, 30.0),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_charges_and_refunds_add_up_over_all_routers_and_the_store(steps: list[tuple[str, int, str, float]]) -> None:
    """I4: at the end, the store's sums are what all routers charged since its run began, less what was on its way then;
    and each router has charged its tenants for exactly what the others added since it began.
    """
    sites = [Site(f"r{n}", TENANTS, quantum=1e6) for n in range(3)]  # so that no charge is cut
    store, kept, runs = UsageExchange("0"), dict[int, UsageAnswer](), 0
    dropped: dict[str, float] = defaultdict(float)
    for what, place, tenant, cost in steps:
        site = sites[place]
        if what == "serve":
            site.queue(tenant, 1, cost)
            site.serve(1, actual=cost / 2)
        elif what == "restart":
            runs += 1
            store = UsageExchange(str(runs))
            kept.clear()
            for each in sites:  # unknown fate: these are dropped
                pending = each.ledger._pending
                if pending is not None and pending[1]:
                    for row in pending[2]:
                        dropped[row.tenant] += row.served
        else:
            answer = store.call(0.0, site.ledger.report(0.0, ()))
            if what == "lose":
                continue
            if what == "late" and place in kept:
                site.ledger.receive(0.0, kept[place])
            kept[place] = answer
            site.ledger.receive(0.0, answer)
    for _ in range(3):
        for site in sites:
            exchange(site, store)
    for tenant in TENANTS:
        own = [
            entry.own.served
            for site in sites
            for key, entry in site.ledger._entries.items()
            if key[0] == tenant
        ]  # fmt: skip
        total = store._sums[tenant, "default"].served if (tenant, "default") in store._sums else 0.0
        assert total == pytest.approx(sum(own), abs=1e-6)
        if not runs:
            assert total == pytest.approx(sum(site.charged(tenant) for site in sites), abs=1e-6)
        for site in sites:
            entry = site.ledger._entries.get((tenant, "default"))
            if entry is not None and entry.seen is not None and not runs:
                others = sum(each.charged(tenant) for each in sites if each is not site)
                assert entry.seen.served <= others + 1e-6


def test_a_report_has_a_bound_and_no_tenant_waits_for_ever() -> None:
    tenants = {f"t{n}": 1.0 for n in range(2 * MAX_ROWS + 5)}
    site, store = Site("r0", tenants), UsageExchange("x")
    for tenant in tenants:
        site.queue(tenant)
    site.serve(len(tenants))
    seen: set[str] = set()
    for turn in range(1, 6):
        report = site.ledger.report(float(turn), ())
        assert len(report.rows) <= MAX_ROWS
        seen |= {row.tenant for row in report.rows}
        site.ledger.receive(float(turn), store.call(float(turn), report))
    assert seen == set(tenants)
    assert sum(store.call(9.0, site.ledger.report(9.0, ())).classes[0][1:2]) == pytest.approx(10.0 * len(tenants))
