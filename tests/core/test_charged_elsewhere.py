"""A charge for service at another router: in whatever place of its ring a member is, it is served that much later."""

from __future__ import annotations

import pytest

from services.core.account import ClassSpec, TenantSpec
from services.core.drr import Drr
from services.core.pool import Flow
from services.core.ring import Ring
from services.core.schedulable import LATER, NEW, NEXT, NOW, OUT
from tests.core.rig import NO_BOUNDS, asking, enqueue, house, serve, standing, start


def flow_of(drr: Drr, tenant: str) -> Flow:
    return drr.tenants[tenant].flows["default"]


def elsewhere(drr: Drr, tenant: str, cost: float) -> None:
    drr.pool("default").charge_elsewhere(0.0, flow_of(drr, tenant), cost)


def queued(quantum: float = 10.0) -> Drr:
    """Two tenants with a hundred requests each, of a quantum each."""
    drr = house("ab", quantum=quantum)
    enqueue(drr, *(asking(tenant) for _ in range(100) for tenant in "ab"))
    return drr


def test_a_tenant_that_was_served_elsewhere_waits_until_the_other_has_had_as_much() -> None:
    drr = queued()
    serve(drr, 10)
    elsewhere(drr, "a", 50.0)
    served = serve(drr, 25)
    assert served.count("b") - served.count("a") == pytest.approx(5, abs=1)
    assert serve(drr, 20).count("a") == pytest.approx(10, abs=1)


def test_the_work_of_two_routers_adds_up_to_equal_shares() -> None:
    """One serves a and b, the other serves a only: each is charged there what the other served."""
    here, there = queued(), house("a")
    enqueue(there, *(asking("a") for _ in range(100)))
    total = {"a": 0, "b": 0}
    for _ in range(30):
        for tenant in serve(here, 3):
            total[tenant] += 1
        serve(there, 1)
        total["a"] += 1
        elsewhere(here, "a", 10.0)
    assert abs(total["a"] - total["b"]) <= 3


@pytest.mark.parametrize("cost", [5.0, 10.0, 35.0, 1000.0])
def test_a_member_is_charged_wherever_it_stands(cost: float) -> None:
    for steps in range(8):
        drr = queued()
        serve(drr, steps)
        before = standing(drr, "a")
        elsewhere(drr, "a", cost)
        assert standing(drr, "a") == pytest.approx(before - cost)
        served = serve(drr, 150)
        assert len(served) == 150
        assert served.count("b") - served.count("a") == pytest.approx(min(100, cost / 10.0), abs=3) or cost > 400


def test_every_position_of_the_ring_is_charged() -> None:
    """With a tenant in each: new, in turn, in the next round, in a later one, and out of the ring."""
    drr = house("ablox")
    drr.flow(drr.pool("default"), drr.tenants["o"])
    enqueue(drr, *(asking(tenant, 4.0) for _ in range(50) for tenant in "abl"))
    serve(drr, 3)
    elsewhere(drr, "l", 500.0)
    while {flow_of(drr, tenant).position for tenant in "abl"} != {NOW, NEXT, LATER}:
        serve(drr, 1)
    enqueue(drr, *(asking("x", 4.0) for _ in range(50)))
    positions = {tenant: flow_of(drr, tenant).position for tenant in "ablox"}
    assert set(positions.values()) == {NEW, NOW, NEXT, LATER, OUT}
    for tenant in positions:
        before = standing(drr, tenant)
        elsewhere(drr, tenant, 8.0)
        assert standing(drr, tenant) == pytest.approx(before - 8.0)
    assert set(serve(drr, 40)) == {"a", "b", "x"}


def test_a_refund_elsewhere_brings_a_debtor_forward() -> None:
    drr = queued()
    serve(drr, 4)
    elsewhere(drr, "a", 500.0)
    serve(drr, 4)
    assert flow_of(drr, "a").position is LATER
    elsewhere(drr, "a", -500.0)
    assert "a" in serve(drr, 4)


def test_a_charge_elsewhere_leaves_what_is_in_flight_here_alone() -> None:
    drr = queued()
    request = start(drr)
    tenant = request.tenant
    before = flow_of(drr, tenant).unsettled
    elsewhere(drr, tenant, 40.0)
    assert flow_of(drr, tenant).unsettled == before == 10.0
    drr.settle(0.0, request, 4.0)
    assert flow_of(drr, tenant).unsettled == 0.0
    assert drr.tenants[tenant].charged == 4.0, "its charges are those of this router"


def test_a_tenant_without_work_here_keeps_sixteen_quanta_of_debt() -> None:
    drr = house("a")
    enqueue(drr, asking("a"))
    serve(drr, 1)
    elsewhere(drr, "a", 1e6)
    assert standing(drr, "a") == -160.0


def test_it_is_not_in_the_work_by_which_rounds_are_measured() -> None:
    drr = queued()
    serve(drr, 10)
    ring = flow_of(drr, "a").node.flows
    assert isinstance(ring, Ring)
    served, rounds = ring.served, ring.round_work
    elsewhere(drr, "a", 300.0)
    assert (ring.served, ring.round_work) == (served, rounds)


def test_a_class_is_charged_apart_from_its_tenants() -> None:
    drr = house(classes=(ClassSpec("gold", 2.0), ClassSpec("tin", 1.0)))
    drr.configure(TenantSpec("g", NO_BOUNDS, class_name="gold"))
    drr.configure(TenantSpec("t", NO_BOUNDS, class_name="tin"))
    enqueue(drr, *(asking(tenant) for _ in range(100) for tenant in "gt"))
    serve(drr, 9)
    pool = drr.pool("default")
    pool.charge_class_elsewhere(0.0, pool.nodes["gold"], 200.0)
    served = serve(drr, 12)
    assert served.count("t") >= 10
    assert serve(drr, 30).count("g") == pytest.approx(20, abs=2)


def test_where_there_is_one_class_nothing_is_charged_to_it() -> None:
    drr = queued()
    pool = drr.pool("default")
    before = repr(pool.classes)
    pool.charge_class_elsewhere(0.0, pool.nodes["default"], 1e6)
    assert repr(pool.classes) == before
    assert len(serve(drr, 10)) == 10
