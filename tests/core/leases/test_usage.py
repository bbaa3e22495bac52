"""What a router reports, and counts of other routers: each token once, whatever is lost."""

from __future__ import annotations

from collections import defaultdict
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.account import QueueBounds, TenantSpec
from services.core.drr import FORGET_AFTER_S
from services.core.leases.exchange import ClassLevel, UsageAnswer, UsageExchange, UsageRow
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
    return site.level.wants(0.0, lambda node: lambda flow: False)


def test_at_most_sixteen_quanta_of_its_weight_are_charged_to_a_class_at_once() -> None:
    classes, of_class = {"gold": 8.0, "tin": 1.0}, {"x": "tin", "g": "gold"}
    here, there = (Site(name, dict.fromkeys("gx", 1.0), classes=classes, of_class=of_class) for name in ("r0", "r1"))
    store = UsageExchange("x")
    for tenant in "gx":
        here.queue(tenant, 50)
        there.queue(tenant, 1, cost=1e6)
    settle((here, there), store)
    before = {name: here.pool.classes.deficit_at(0.0, node) for name, node in here.pool.nodes.items()}  # type: ignore[union-attr]
    there.serve(2)
    exchange(there, store)
    exchange(here, store)
    for name, weight in classes.items():
        after = here.pool.classes.deficit_at(0.0, here.pool.nodes[name])  # type: ignore[union-attr]
        assert after == pytest.approx(before[name] - 160.0 * weight), name


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


def test_a_store_that_restarts_empty_refunds_no_class() -> None:
    classes = {"gold": 8.0, "tin": 1.0}
    here, store = Site("r0", {"g": 1.0}, classes=classes), UsageExchange("x")
    here.queue("g", 50)
    settle((here,), store)
    here.serve(9)
    settle((here,), store)
    node = here.pool.nodes["gold"]
    before = here.pool.classes.deficit_at(0.0, node)  # type: ignore[union-attr]
    settle((here,), UsageExchange("y"))
    assert here.pool.classes.deficit_at(0.0, node) == before  # type: ignore[union-attr]


def test_an_answer_to_an_earlier_report_leaves_the_later_one_as_it_is() -> None:
    here, _, store = pair()
    early = exchange(here, store)
    here.queue("a", 2)
    here.serve(2)
    report = here.ledger.report(0.0, ())
    assert here.ledger.receive(0.0, early) == []
    assert here.ledger.report(0.0, ()) == report


def test_a_report_of_no_run_that_is_answered_twice_is_still_to_be_added() -> None:
    here, store = Site("r0", TENANTS), UsageExchange("x")
    here.queue("a", 2)
    here.serve(2)
    report = here.ledger.report(0.0, ())
    for _ in range(2):
        here.ledger.receive(0.0, store.call(0.0, report))
    again = here.ledger.report(0.0, ())
    assert (again.run, again.stamp, again.rows) == ("x", report.stamp, report.rows)
    exchange(here, store)
    assert store._sums["a", "default"].served == 20.0


def test_a_turn_counts_once_what_this_router_served() -> None:
    here, _, store = pair()
    here.queue("a", 3)
    here.serve(2)
    exchange(here, store)
    node = here.pool.nodes["default"]
    assert here.level.turn(node) == store._turns["default"]
    here.serve(1)
    assert here.level.turn(node) == store._turns["default"] + 10.0


def rows(site: Site, store: UsageExchange, now: float, *, waits: bool = True) -> tuple[UsageRow, ...]:
    """What it reports, and is answered."""
    report = site.ledger.report(now, site.level.wants(now, lambda node: lambda flow: False) if waits else ())
    site.ledger.receive(now, store.call(now, report))
    return report.rows


def test_a_tenant_waits_while_its_class_does_and_was_empty_unless_it_has_waited_since_the_report_before() -> None:
    site, store = Site("r0", {"a": 1.0}), UsageExchange("x")
    for _ in range(2):
        rows(site, store, 0.0)
    site.queue("a", 9, now=0.1)
    seen = [(row.waits, row.emptied) for now in (0.2, 0.4) for row in rows(site, store, now)]
    assert seen == [(True, True), (True, False)]
    (free,) = rows(site, store, 0.6, waits=False)
    assert (free.waits, free.emptied) == (False, False), "a slot is free for it"
    (row,) = rows(site, store, 0.8)
    assert (row.waits, row.emptied) == (True, True), "it did not wait at the report before"
    site.serve(9, 0.9)
    site.queue("a", 1, now=0.95)
    (row,) = rows(site, store, 1.0)
    assert (row.waits, row.emptied) == (True, True)


def test_a_class_reports_the_lowest_tag_of_its_tenants_that_wait_on_while_there_are_any() -> None:
    site, store = Site("r0", {"a": 1.0, "b": 2.0, "c": 1.0}), UsageExchange("x")
    for tenant in "ab":
        site.queue(tenant, 9)
    rows(site, store, 0.0)
    rows(site, store, 0.0)
    for tenant, tag in (("a", 70.0), ("b", 30.0)):
        flow = site.drr.flow(site.pool, site.drr.tenants[tenant])
        site.level.set_tag(0.0, flow, tag, flow.charged)
    site.queue("c")  # it begins to wait, at V
    (level,) = site.ledger.report(0.2, site.level.wants(0.2, lambda node: lambda flow: False)).levels
    assert level == ClassLevel("default", 1.0, True, 30.0, None)
    rows(site, store, 0.2)
    site.serve(19, 0.3)
    (level,) = site.ledger.report(0.4, ()).levels
    assert (level.waits, level.steady, level.virtual) == (False, None, 30.0)


def test_a_tag_goes_on_with_what_is_served_here_for_all_routers_until_the_next_answer() -> None:
    here, there, store = pair()
    for now in (0.2, 0.4, 0.6, 0.8):
        for site in (here, there):
            site.queue("a", 2, now=now)
        there.serve(2, now)
        rows(there, store, now)
        rows(here, store, now)
    flow = here.drr.flow(here.pool, here.drr.tenants["a"])
    tag = store._sums["a", "default"].tag
    assert here.level.tag(0.8, flow) == pytest.approx(tag + 7.5, abs=2.5), "about 100 a second, for a tenth"
    assert here.level.tag(1.0, flow) == (before := here.level.tag(0.8, flow))
    here.serve(1, 1.0)
    assert flow.weight == 0.5
    assert here.level.tag(1.0, flow) == pytest.approx(before + 10.0 / 0.5), "the other one has half of its requests"


def test_what_is_served_while_a_report_is_under_way_is_in_the_tag_when_it_is_answered() -> None:
    site, store = Site("r0", {"a": 2.0}), UsageExchange("x")
    site.queue("a", 9)
    rows(site, store, 0.0)
    rows(site, store, 0.0)
    site.serve(2)
    report = site.ledger.report(0.0, ())
    site.serve(1)
    site.ledger.receive(0.0, store.call(0.0, report))
    assert site.level.tag(0.0, site.drr.flow(site.pool, site.drr.tenants["a"])) == pytest.approx(30.0 / 2.0)


def test_a_store_that_has_forgotten_a_tag_does_not_take_it_back() -> None:
    site, store = Site("r0", {"a": 1.0}), UsageExchange("x")
    site.queue("a", 9)
    site.serve(5)
    for _ in range(3):
        rows(site, store, 0.0)
    flow = site.drr.flow(site.pool, site.drr.tenants["a"])
    assert site.level.tag(0.0, flow) == 50.0
    rows(site, UsageExchange("y"), 0.0)
    assert site.level.tag(0.0, flow) == 50.0


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


@pytest.mark.parametrize(("away_s", "charged"), [(60.0, True), (60.5, False)])
def test_a_minute_is_not_long(away_s: float, charged: bool) -> None:
    here, there, store = pair()
    exchange(here, store)
    there.queue("a", 9, now=away_s)
    there.serve(9, away_s)
    exchange(there, store, away_s)
    here.queue("a", now=away_s)
    exchange(here, store, away_s)
    for _ in range(2):  # a tag that is as old as the exchange grows by what others serve
        exchange(here, store, away_s)
    flow = here.drr.tenants["a"].flows["default"]
    assert (here.level._tags[flow].per_s > 0) is charged


def test_a_tenant_that_was_forgotten_and_comes_back_begins_at_virtual_time_and_was_empty() -> None:
    site, store = Site("r0", {"a": 1.0}), UsageExchange("x")
    spec = TenantSpec("a", QueueBounds(10))
    site.queue("a", 9)
    for _ in range(2):
        rows(site, store, 0.0)
    site.serve(9)
    site.drr.dismiss(0.0, spec)
    assert site.drr.forget_idle(FORGET_AFTER_S) == ["a"]
    now = FORGET_AFTER_S
    site.scheduler.configure(spec)
    site.level.receive(now, {"default": 500.0})
    site.queue("a", 3, now=now)
    site.serve(1, now)
    (row,) = site.ledger.report(now, ()).rows
    assert (row.served, row.emptied) == (10.0, True)
    site.serve(1, now)
    assert site.level.tag(now, site.drr.flow(site.pool, site.drr.tenants["a"])) == 510.0


def test_entries_of_forgotten_tenants_are_dropped_a_minute_later_and_those_of_quiet_ones_are_not() -> None:
    others = [f"t{n}" for n in range(100)]
    site, store = Site("r0", dict.fromkeys(["a", *others], 1.0)), UsageExchange("x")
    for tenant in ("a", *others):
        site.queue(tenant)
    site.serve(101)
    for _ in range(2):
        rows(site, store, 0.0)
    site.drr.idle_tenants = 0
    for tenant in others:
        site.drr.dismiss(1.0, TenantSpec(tenant, QueueBounds(10)))
    assert len(site.drr.forget_idle(1.0)) == 100
    site.pool.release_idle(1.0)
    rows(site, store, 60.0)
    assert len(site.ledger._entries) == len(site.level._tags) == 101
    rows(site, store, 60.5)
    assert list(site.ledger._entries) == [("a", "default")]
    assert [flow.tenant.id for flow in site.level._tags] == ["a"]


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
