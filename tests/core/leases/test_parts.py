"""A tenant of several routers counts once: in parts that add up, with a debt that follows its tag."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from services.core.leases.exchange import UsageExchange
from services.core.leases.parts import BAND_QUANTA, MAX_QUANTA, MIN_PART, Parts
from services.core.pool import Flow
from tests.core.leases.rig import QUANTUM, Site

BAND = BAND_QUANTA * QUANTUM


def flow_of(site: Site, tenant: str) -> Flow:
    return site.drr.tenants[tenant].flows["default"]


def deficit(site: Site, tenant: str) -> float:
    flow = flow_of(site, tenant)
    return flow.node.flows.deficit_at(0.0, flow)


def made(tags: Mapping[str, float], shared: Mapping[str, float]) -> tuple[Site, Parts]:
    """Tenants that wait at these tags. `shared`: what each asks other routers for, over what it asks here."""
    site = Site("r0", dict.fromkeys(tags, 1.0))
    parts = Parts(site.pool, site.level)
    for tenant, tag in tags.items():
        site.queue(tenant, 5)
        flow = flow_of(site, tenant)
        parts.set(0.0, flow, shared.get(tenant, 0.0) * flow.stats.asked.rate(0.0))
        site.level.set_tag(0.0, flow, tag, flow.charged)
    return site, parts


def test_a_tenant_weighs_the_part_of_its_requests_that_come_here() -> None:
    site, _ = made({"a": 0.0, "b": 0.0}, {"a": 3.0})
    flow = flow_of(site, "a")
    assert (flow.weight, flow.elsewhere) == pytest.approx((0.25, 0.75))
    assert (flow_of(site, "b").weight, flow_of(site, "b").elsewhere) == (1.0, 0.0)
    assert flow.tenant.weight == 1.0
    assert site.pool.share(flow) == pytest.approx(0.2)


def test_the_parts_of_all_routers_add_up_to_its_weight() -> None:
    store, sites = UsageExchange("x"), [Site(f"r{n}", {"a": 4.0, "b": 1.0}) for n in range(3)]
    for site, requests in zip(sites, (10, 30, 60), strict=True):
        site.queue("a", requests)
    for _ in range(3):
        for site in sites:
            site.ledger.receive(0.0, store.call(0.0, site.ledger.report(0.0, ())))
    weights = [flow_of(site, "a").weight for site in sites]
    assert weights == pytest.approx([0.4, 1.2, 2.4], rel=0.06)
    for site in sites:
        node = flow_of(site, "a").node
        assert site.ledger.elsewhere.active_weight(node) == pytest.approx(4.0), "it is active once"


def test_a_tenant_that_asks_hardly_anything_here_keeps_a_part() -> None:
    site, _ = made({"a": 0.0}, {"a": 1000.0})
    assert flow_of(site, "a").weight == MIN_PART


def test_a_tenant_that_asks_hardly_anything_elsewhere_is_whole_here() -> None:
    site, _ = made({"a": 0.0}, {"a": 0.04})
    assert flow_of(site, "a").weight == 1.0


def test_without_news_each_tenant_counts_in_full_again() -> None:
    store, sites = UsageExchange("x"), [Site(f"r{n}", {"a": 1.0}) for n in range(2)]
    for site in sites:
        site.queue("a", 5)
    for site in 3 * sites:
        site.ledger.receive(0.0, store.call(0.0, site.ledger.report(0.0, ())))
    site = sites[0]
    site.ledger.forget_stale(1.9)
    assert flow_of(site, "a").weight < 0.6
    site.ledger.forget_stale(2.1)
    assert (flow_of(site, "a").weight, flow_of(site, "a").elsewhere) == (1.0, 0.0)


@pytest.mark.parametrize("ahead", [60.0, -60.0])
def test_what_a_tenant_owes_follows_its_tag_among_those_that_only_this_router_serves(ahead: float) -> None:
    site, parts = made({"a": 100.0 + ahead, "b": 100.0}, {"a": 3.0})
    before = deficit(site, "a"), deficit(site, "b")
    expected = before[0] - 0.25 * (ahead + before[0] / 0.25 - before[1] - (BAND if ahead > 0 else -BAND))
    parts.align(0.0)
    assert deficit(site, "a") == pytest.approx(expected)
    assert deficit(site, "b") == before[1]


@pytest.mark.parametrize("elsewhere", [9.0, 0.0])
def test_what_a_tenant_owes_while_it_has_no_work_is_as_far_from_paid_with_another_part(elsewhere: float) -> None:
    """Otherwise one that owes a request would wait ten times as long, and be rejected meanwhile, once the others ask
    for nine times what comes here: as after a store, or a router, was gone for some seconds.
    """
    site, parts = made({"a": 0.0, "b": 0.0}, {"a": 1.0})
    site.serve(10)
    flow = flow_of(site, "a")
    site.pool.charge_elsewhere(0.0, flow, 50.0)
    owes = deficit(site, "a") / flow.weight
    assert not flow.backlog
    assert owes < -50.0
    parts.set(0.0, flow, elsewhere * flow.stats.asked.rate(0.0))
    assert flow.weight == pytest.approx(1.0 / (1.0 + elsewhere))
    assert deficit(site, "a") / flow.weight == pytest.approx(owes)


def test_what_a_tenant_owes_stands_while_it_has_work_since_its_tag_moves_it() -> None:
    site, parts = made({"a": 0.0, "b": 0.0}, {"a": 1.0})
    flow = flow_of(site, "a")
    site.pool.charge_elsewhere(0.0, flow, 50.0)
    owes = deficit(site, "a")
    parts.set(0.0, flow, 9.0 * flow.stats.asked.rate(0.0))
    assert deficit(site, "a") == owes


def test_where_each_is_served_elsewhere_they_move_towards_one_another() -> None:
    site, parts = made({"a": 200.0, "b": 100.0}, {"a": 1.0, "b": 1.0})
    before = deficit(site, "a"), deficit(site, "b")
    parts.align(0.0)
    assert deficit(site, "a") == pytest.approx(before[0] - 0.5 * (50.0 - BAND))
    assert deficit(site, "b") == pytest.approx(before[1] + 0.5 * (50.0 - BAND))


def test_within_a_quantum_nothing_is_moved() -> None:
    site, parts = made({"a": 100.0, "b": 100.0}, {"a": 1.0})
    before = deficit(site, "a")
    site.level.set_tag(0.0, flow_of(site, "a"), 100.0 + deficit(site, "b") - before / 0.5 + 0.9 * BAND, 0.0)
    parts.align(0.0)
    assert deficit(site, "a") == before


def test_a_tenant_that_waits_alone_is_not_moved() -> None:
    site, parts = made({"a": 1e6}, {"a": 3.0})
    before = deficit(site, "a")
    parts.align(0.0)
    assert deficit(site, "a") == before


def test_at_most_sixteen_quanta_are_charged_at_once() -> None:
    site, parts = made({"a": 1e6, "b": 0.0}, {"a": 3.0})
    before = deficit(site, "a")
    parts.align(0.0)
    assert deficit(site, "a") == pytest.approx(before - MAX_QUANTA * QUANTUM * 0.25)


def test_a_tenant_whose_weight_is_changed_has_the_same_part_of_it() -> None:
    site, parts = made({"a": 0.0}, {"a": 3.0})
    flow = flow_of(site, "a")
    flow.tenant.weight = 8.0
    parts.set(0.0, flow, 3.0 * flow.stats.asked.rate(0.0))
    assert flow.weight == pytest.approx(2.0)


def test_tenants_that_are_forgotten_are_dropped() -> None:
    site, parts = made({"a": 1e6, "b": 0.0}, {"a": 3.0})
    before = deficit(site, "a")
    parts.keep({flow_of(site, "b")})
    parts.align(0.0)
    assert deficit(site, "a") == before
