"""One of several routers judges a tenant by the whole pool, and predicts by what the tenant gets here."""

from __future__ import annotations

from math import exp, inf

import pytest

from services.core.admissioncheck import Admitted, Rejection
from services.core.elsewhere import STALE_S, Elsewhere
from services.core.leases.capacity import LeasedSlots
from services.core.request import Request
from services.core.sharedpool import SharedDrrDiscipline, SharedPoolQueue
from tests.core.leases.rig import Site


def site(asked: dict[str, float] | None = None, weights: dict[str, float] | None = None) -> Site:
    """A router with 4 of 16 slots, of 100 tokens a second each, and three tenants."""
    made = Site("r0", {"a": 1.0, "b": 1.0, "c": 1.0})
    made.scheduler.capacity(0.0, 4)
    elsewhere = made.ledger.elsewhere
    made.pool_slots = 16
    elsewhere.receive(0.0, {(each, "default"): per_s for each, per_s in (asked or {}).items()}, weights or {})
    return made


def offered(made: Site, tenant: str, now: float, n: int = 1, deadline_s: float = 5.0) -> list[Admitted | Rejection]:
    return [
        made.scheduler.admit(now, Request(f"{now}-{each}", tenant, now, now + deadline_s, 20, 0)) for each in range(n)
    ]


def load(made: Site, tenant: str, asked_per_s: float, now: float = 0.0) -> float | None:
    drr, estimator = made.drr, made.scheduler.pools["default"].estimator
    flow = drr.flow(made.pool, drr.tenants[tenant])
    return made.ledger.elsewhere.load(now, flow, made.pool, estimator, asked_per_s)


def test_only_one_of_several_routers_has_them() -> None:
    made = site()
    assert isinstance(made.pool, SharedPoolQueue)
    assert isinstance(made.pool.discipline, SharedDrrDiscipline)
    assert made.pool.elsewhere is made.ledger.elsewhere


def test_the_load_of_a_tenant_is_of_all_routers_on_the_whole_pool() -> None:
    assert load(site(), "a", 1600.0) == 1.0, "alone, its share is the pool"
    assert load(site(weights={"default": 3.0}), "a", 400.0) == 1.0, "a quarter, beside three at other routers"
    assert load(site(asked={"a": 300.0}, weights={"default": 3.0}), "a", 100.0) == 1.0
    assert load(site(asked={"b": 300.0}, weights={"default": 3.0}), "a", 100.0) == 0.25


def test_what_a_tenant_asked_of_others_fades_until_they_say_more() -> None:
    made = site(asked={"a": 300.0}, weights={"default": 3.0})
    assert load(made, "a", 100.0, now=1.5) == pytest.approx((100.0 + 300.0 * exp(-0.5)) / 400.0)


def share(made: Site, tenant: str) -> float | None:
    flow = made.drr.flow(made.pool, made.drr.tenants[tenant])
    return made.ledger.elsewhere.share(0.0, flow, made.pool, made.scheduler.pools["default"].estimator)


def test_only_a_tenant_above_its_share_of_the_pool_has_one_of_this_router() -> None:
    made = site(asked={"a": 400.0, "b": 800.0, "c": 800.0}, weights={"default": 3.0})
    elsewhere, flow = made.ledger.elsewhere, made.drr.flow(made.pool, made.drr.tenants["b"])
    assert share(made, "a") is None, "it asks for a quarter of the pool, which is its share"
    flow.stats.asked.add(0.0, 3.0 * 800.0)  # half of what it asks for, of twice its share
    assert share(made, "b") == pytest.approx(800.0 / 4.0 / 400.0)
    flow.stats.got.add(0.0, 10.0 * 300.0)
    assert share(made, "b") == elsewhere.share_of(flow) == pytest.approx(300.0 / 400.0), "it got more lately"
    elsewhere.receive(0.0, {}, {})
    assert elsewhere.share_of(flow) == inf, "not known yet"


def test_a_tenant_that_is_not_above_its_share_any_more_has_none_of_this_router() -> None:
    made = site(asked={"a": 800.0}, weights={"default": 3.0})
    elsewhere, flow = made.ledger.elsewhere, made.drr.flow(made.pool, made.drr.tenants["a"])
    estimator = made.scheduler.pools["default"].estimator
    assert elsewhere.share(0.0, flow, made.pool, estimator) is not None
    assert elsewhere.share_of(flow) < inf
    assert elsewhere.share(STALE_S + 0.1, flow, made.pool, estimator) is None
    assert elsewhere.share_of(flow) == inf


def test_a_class_without_active_tenants_counts_itself_among_those_that_have_some() -> None:
    made = Site("r0", {"a": 1.0, "b": 1.0}, classes={"gold": 8.0, "tin": 1.0}, of_class={"b": "tin"})
    elsewhere, nodes = made.ledger.elsewhere, made.pool.nodes
    elsewhere.receive(0.0, {}, {"gold": 1.0})
    assert elsewhere.class_share(made.pool, nodes["tin"]) == pytest.approx(1.0 / 9.0)
    assert elsewhere.class_share(made.pool, nodes["gold"]) == 1.0


def test_without_news_from_the_exchange_no_load_is_known() -> None:
    assert load(site(), "a", 100.0, now=STALE_S) is not None
    assert load(site(), "a", 100.0, now=STALE_S + 0.1) is None
    assert Elsewhere(lambda: 0).is_fresh(0.0) is False


def test_a_tenant_alone_at_its_router_does_not_pass_for_a_light_one() -> None:
    """It asks for less than this router's slots, and for more than its quarter of the pool."""
    here, alone = site(weights={"default": 3.0}), site()
    for made in (here, alone):
        for n in range(60):
            offered(made, "a", 0.05 * n)
    node = here.pool.nodes["default"]
    flow = here.drr.tenants["a"].flows["default"]
    assert node.active_flows == 1
    estimator = here.scheduler.pools["default"].estimator
    asked_per_s = flow.stats.asked.rate(3.0)
    here.ledger.elsewhere.receive(3.0, {}, {"default": 30.0})
    assert here.ledger.elsewhere.load(3.0, flow, here.pool, estimator, asked_per_s) > 1.0  # type: ignore[operator]
    alone.ledger.elsewhere.receive(3.0, {}, {})
    flow = alone.drr.tenants["a"].flows["default"]
    assert alone.ledger.elsewhere.load(3.0, flow, alone.pool, estimator, asked_per_s) < 1.0  # type: ignore[operator]


def test_above_its_share_a_tenant_waits_for_its_own_work_at_the_rate_that_it_gets_here() -> None:
    made = site(asked={"a": 3000.0}, weights={"default": 3.0})
    made.queue("a", 40, cost=20.0)
    flow, estimator = made.drr.tenants["a"].flows["default"], made.scheduler.pools["default"].estimator
    for _ in range(4):
        estimator.start(0.0, Request("x", "a", 0.0, 9.0, 1, 1), 1.0)
    shared = made.pool.discipline.predict_wait(0.0, flow, 1e9, estimator)
    assert made.pool.share(flow) == shared.share < 0.2
    made.ledger.elsewhere.receive(0.0, {}, {})
    made.pool.elsewhere = None
    own = made.pool.discipline.predict_wait(0.0, flow, 1e9, estimator)
    assert own.share == 1.0
    assert shared.wait_s > 5 * own.wait_s


def test_the_slots_to_plan_with_follow_the_leases_over_a_second() -> None:
    leased = LeasedSlots()
    for now, may, planned in ((0.0, 8, 8), (1.0, 0, 8), (2.0, 0, 3)):
        leased.follow(now, may)
        assert leased.planned(0, 16) == planned
    assert leased.planned(5, 16) == 5, "never less than what is in use"
    leased.follow(9.0, 0)
    assert leased.planned(0, 16) == 1, "a pool with slots is not without capacity"
    assert leased.planned(0, 0) == 0
