"""One tag for a tenant at all routers: no credit for time without work, and no debt that stands still."""

from __future__ import annotations

from math import inf

import pytest

from services.core.leases.exchange import UsageExchange
from services.core.leases.level import MAX_FLOWS, MAX_WANTED, first_flows, light_requests
from services.core.pool import Flow
from tests.core.leases.rig import QUANTUM, Site


def level_of(site: Site, now: float = 0.0, name: str = "default") -> float:
    return site.level.level(now, site.pool.nodes[name])


def flow_of(site: Site, tenant: str) -> Flow:
    return site.drr.flow(site.pool, site.drr.tenants[tenant])


def not_light(flow: Flow) -> bool:
    return False


def call(store: UsageExchange, now: float, *sites: Site) -> None:
    """Each router exchanges. What is queued waits for a slot."""
    for site in sites:
        site.ledger.receive(
            now, store.call(now, site.ledger.report(now, site.level.wants(now, lambda node: not_light)))
        )


def begun(*weights: dict[str, float]) -> tuple[UsageExchange, *tuple[Site, ...]]:
    """A store, and routers that have exchanged once."""
    store, sites = UsageExchange("x"), [Site(f"r{n}", each) for n, each in enumerate(weights)]
    call(store, 0.0, *sites)
    call(store, 0.0, *sites)
    return store, *sites


def test_the_level_is_the_tag_of_the_tenant_whose_turn_is_next() -> None:
    site = Site("r0", {"a": 1.0, "b": 4.0})
    site.queue("b")
    site.queue("a")
    site.level.set_tag(0.0, flow_of(site, "a"), 70.0, 0.0)
    site.level.set_tag(0.0, flow_of(site, "b"), 30.0, 0.0)
    assert level_of(site) == 30.0
    site.queue("b")
    site.serve(1)
    assert level_of(site) == pytest.approx(30.0 + 10.0 / 4.0), "with what it was served here since"
    site.serve(1)
    assert level_of(site) == 70.0


def test_a_level_is_not_below_virtual_time_which_never_falls() -> None:
    site = Site("r0", {"a": 1.0})
    assert site.level.virtual(0.0, "default") == -inf
    site.queue("a")
    for virtual in (100.0, 40.0, inf):
        site.level.receive(0.0, {"default": virtual})
    assert level_of(site) == site.level.virtual(0.0, "default") == 100.0


def test_a_tenant_that_two_routers_serve_has_one_tag_so_neither_is_behind_for_it() -> None:
    store, one, other = begun({"a": 1.0}, {"a": 1.0})
    for site in (one, other):
        site.queue("a", 100)
    call(store, 0.2, one, other)
    one.serve(50)  # the other one was stopped meanwhile
    for turn in range(30):  # until the one that served is not expected to go on
        call(store, 0.4 + 0.2 * turn, one, other)
    assert level_of(one) == pytest.approx(500.0)
    assert level_of(other) == pytest.approx(500.0, abs=0.1)


def test_what_a_router_serves_is_its_part_of_what_all_serve_until_the_next_answer() -> None:
    store, one, other = begun({"a": 1.0}, {"a": 1.0})
    one.queue("a", 30)
    other.queue("a", 90)
    for now in (0.2, 0.4):
        call(store, now, one, other)
    before = one.level.tag(0.4, flow_of(one, "a"))
    one.serve(1)
    assert one.level.tag(0.4, flow_of(one, "a")) == pytest.approx(before + 10.0 / 0.25, rel=0.1)
    for now in (0.6, 0.8):
        call(store, now, one, other)
    assert one.level.tag(0.8, flow_of(one, "a")) == pytest.approx(before + 10.0), "the other one served nothing"


def test_a_router_that_starts_while_no_other_one_waits_begins_where_they_are() -> None:
    store, one = begun({"a": 1.0, "b": 1.0})
    one.queue("a", 50)
    one.serve(50)
    call(store, 0.2, one)
    late = Site("r1", {"a": 1.0, "c": 1.0})
    late.queue("c", 9)
    call(store, 0.4, late)
    call(store, 0.6, late)
    one.queue("b", 9)
    call(store, 0.8, one, late)
    assert level_of(one) == level_of(late) == pytest.approx(500.0)


def test_a_router_whose_tenants_were_served_less_is_behind_until_they_have_been_served_as_much() -> None:
    store, one, other = begun({"a": 1.0}, {"b": 2.0})
    one.queue("a", 100)
    other.queue("b", 100)
    for now in (0.2, 0.4):
        call(store, now, one, other)
    one.serve(30)
    call(store, 0.6, one, other)
    assert level_of(one) - level_of(other) == pytest.approx(300.0)
    other.serve(60)
    call(store, 0.8, one, other)
    assert level_of(one) == pytest.approx(level_of(other))


def test_a_tenant_saves_nothing_up_while_it_asks_for_less_than_it_could_get() -> None:
    store, one, other = begun({"a": 1.0}, {"b": 1.0})
    one.queue("a", 1000)
    for turn in range(50):
        one.serve(10)
        other.queue("b")
        call(store, 0.2 * turn, one, other)
        other.serve(1, 0.2 * turn + 0.1)
    other.queue("b", 100)
    call(store, 10.0, one, other)
    assert level_of(other) >= level_of(one) - 100.0, "b waited at each exchange, and was empty between them"


def test_a_tenant_that_waits_all_the_time_keeps_what_it_has_coming() -> None:
    store, one, other = begun({"a": 1.0}, {"b": 1.0})
    one.queue("a", 1000)
    other.queue("b", 1000)
    for turn in range(50):
        call(store, 0.2 * turn, one, other)
        one.serve(10)
    call(store, 10.0, one, other)
    assert level_of(one) - level_of(other) == pytest.approx(50 * 100.0 - 100.0), "since it waited twice in a row"


def test_a_router_that_hears_of_no_store_counts_what_it_serves_itself() -> None:
    site = Site("r0", {"a": 2.0})
    site.queue("a", 50)
    site.ledger.report(0.0, ())
    site.serve(10)
    assert level_of(site) == pytest.approx(50.0)
    site.level.receive(0.0, {"default": 80.0})
    assert level_of(site) == 80.0, "it never falls behind those that it meets at workers"


def test_tags_of_tenants_that_are_forgotten_are_dropped() -> None:
    site = Site("r0", {"a": 1.0, "b": 1.0})
    for tenant in "ab":
        site.queue(tenant)
        site.level.set_tag(0.0, flow_of(site, tenant), 5.0, 0.0)
    site.level.keep_tags([flow_of(site, "b")])
    assert list(site.level._tags) == [flow_of(site, "b")]


def test_a_tag_is_ahead_by_what_others_served_in_the_age_of_their_reports_and_stands_until_the_next_answer() -> None:
    site = Site("r0", {"a": 2.0})
    flow = flow_of(site, "a")
    for turn in range(101):  # 100 tokens per second
        site.level.set_tag(0.2 * turn, flow, 10.0 * turn, 0.0, 20.0)
    assert site.level.tag(20.0, flow) == pytest.approx(1000.0 + 100.0 * 0.1 / 2.0), "reports are a tenth old on average"
    for later in (20.3, 20.9, 21.5, 80.0):
        assert site.level.tag(later, flow) == site.level.tag(20.0, flow)


def test_what_the_others_serve_is_a_mean_of_half_a_second() -> None:
    site = Site("r0", {"a": 1.0})
    flow = flow_of(site, "a")
    site.level.set_tag(0.0, flow, 0.0, 0.0)
    site.level.set_tag(0.5, flow, 100.0, 0.0, 100.0)
    assert site.level.tag(1.0, flow) == pytest.approx(100.0 + 126.42 * 0.1, abs=0.01), "200 a second, by 1 - 1/e"
    site.level.set_tag(1.0, flow, 100.0, 0.0, 0.0)
    assert site.level.tag(1.9, flow) == pytest.approx(100.0 + 126.42 * 0.3679 * 0.1, abs=0.01)


def test_virtual_time_goes_on_between_two_answers_as_fast_as_lately_for_a_second_at_most() -> None:
    site = Site("r0", {"a": 1.0})
    site.level.receive(0.0, {"default": 40.0})
    assert site.level.virtual(9.0, "default") == 40.0
    site.level.receive(0.5, {"default": 140.0})
    assert site.level.virtual(1.0, "default") == pytest.approx(140.0 + 126.42 * 0.5, abs=0.01)
    assert site.level.virtual(9.0, "default") == pytest.approx(140.0 + 126.42, abs=0.01)
    assert site.level.known_virtual("default") == 140.0


def test_a_tenant_that_is_new_at_a_router_begins_at_virtual_time_whatever_it_was_charged() -> None:
    site = Site("r0", {"a": 2.0})
    site.queue("a", 9)
    site.serve(4)
    flow = flow_of(site, "a")
    site.level.receive(0.0, {"default": 100.0})
    assert site.level.tag(0.0, flow) == 100.0
    site.serve(2)
    assert site.level.tag(0.0, flow) == pytest.approx(100.0 + 20.0 / 2.0)


def test_what_the_others_served_before_the_first_answer_says_nothing_of_how_fast() -> None:
    site = Site("r0", {"a": 1.0})
    flow = flow_of(site, "a")
    assert site.level.tag(0.1, flow) == 0.0
    site.level.set_tag(0.2, flow, 500.0, 0.0, 500.0)
    assert site.level.tag(0.4, flow) == 500.0


def test_wants_are_what_could_start_by_class() -> None:
    site = Site(
        "r0", {"a": 1.0, "b": 1.0}, classes={"gold": 8.0, "tin": 1.0}, of_class={"a": "gold", "b": "tin"}
    )  # fmt: skip
    site.queue("a", 3)
    site.queue("b", 100)
    wants = {want.class_name: want for want in site.level.wants(0.0, lambda node: lambda flow: flow.tenant.id == "a")}
    assert (wants["gold"].requests, wants["gold"].light) == (3, 3)
    assert (wants["tin"].requests, wants["tin"].light) == (MAX_WANTED, 0)
    assert Site("r1", {}).level.wants(0.0, lambda node: not_light) == ()


def test_retries_are_wanted_first_and_as_light_beside_what_waits() -> None:
    site = Site("r0", {"a": 1.0}, classes={"gold": 8.0, "tin": 1.0})
    (alone,) = site.level.wants(0.0, lambda node: lambda flow: False, {"tin": 2})
    assert alone == ("tin", 2, 2, 0.0, 0.0), "a class that waits for nothing else is at 0 while V is not known"
    site.queue("a", 3)
    (with_others, _) = site.level.wants(0.0, lambda node: lambda flow: False, {"gold": 2, "tin": 1})
    assert (with_others.requests, with_others.light) == (5, 2)


def test_retries_whose_queue_cannot_start_are_wanted_alone_and_at_v() -> None:
    site = Site("r0", {"a": 1.0, "b": 1.0}, classes={"gold": 8.0, "tin": 1.0}, of_class={"a": "gold", "b": "tin"})
    site.queue("a", 3)
    site.queue("b", 3)
    site.level.set_tag(0.0, flow_of(site, "a"), 500.0, 0.0)
    (alone,) = site.level.wants(0.0, lambda node: lambda flow: True, {"gold": 2}, queue=False)
    assert alone == ("gold", 2, 2, 0.0, 0.0)


def test_the_turn_of_a_class_is_what_all_routers_served_and_this_one_since() -> None:
    site = Site("r0", {"a": 1.0}, classes={"gold": 8.0, "tin": 1.0})
    site.queue("a", 5)
    site.serve(2)
    node = site.pool.nodes["gold"]
    site.level.set_turn("gold", 100.0, 20.0)
    assert site.level.turn(node) == 100.0
    site.serve(2)
    assert site.level.turn(node) == pytest.approx(100.0 + 20.0 / 8.0)


def test_a_refund_does_not_take_a_class_back_behind_what_the_exchange_said() -> None:
    site = Site("r0", {"a": 1.0}, classes={"gold": 8.0})
    site.queue("a", 2)
    site.serve(1)
    site.level.set_turn("gold", 100.0, 18.0)  # 10 of the answer, and 8 of which it gives back
    assert site.level.turn(site.pool.nodes["gold"]) == 100.0


def test_a_ring_without_work_follows_the_others_so_that_debts_are_paid() -> None:
    site = Site("r0", {"a": 1.0})
    site.queue("a")
    site.serve(1)
    flow = site.drr.tenants["a"].flows["default"]
    site.pool.charge_elsewhere(0.0, flow, 100.0)
    owed = -flow.node.flows.deficit_at(0.0, flow)
    assert owed > 90.0
    site.level.receive(0.0, {"default": 1000.0})
    assert -flow.node.flows.deficit_at(0.0, flow) == pytest.approx(owed), "where the others are is no progress yet"
    site.level.receive(0.0, {"default": 1060.0})
    assert -flow.node.flows.deficit_at(0.0, flow) == pytest.approx(owed - 60.0)
    site.level.receive(0.0, {"default": 1e6})
    assert flow.node.flows.deficit_at(0.0, flow) == QUANTUM


def test_a_ring_with_work_is_not_moved() -> None:
    site = Site("r0", {"a": 1.0})
    site.queue("a")
    site.level.receive(0.0, {"default": 1e6, "unknown": 5.0})
    assert site.pool.nodes["default"].flows.given == 0.0


def test_a_router_is_ahead_when_all_its_classes_are() -> None:
    site = Site("r0", {"a": 1.0})
    assert not site.level.is_ahead(0.0)
    site.queue("a", 50)
    site.ledger.report(0.0, ())
    site.level.receive(0.0, {"default": 5.0})
    site.serve(9)
    assert site.level.is_ahead(0.0)
    site.level.receive(0.0, {"default": 1e6})
    assert not site.level.is_ahead(0.0)


def test_a_router_is_ahead_by_more_than_two_quanta_in_each_of_its_classes() -> None:
    site = Site("r0", {"a": 1.0, "b": 1.0}, classes={"gold": 1.0, "tin": 1.0}, of_class={"b": "tin"})
    site.queue("a")
    site.level.receive(0.0, {"gold": 5.0, "tin": 5.0})
    gold, tin = flow_of(site, "a"), flow_of(site, "b")
    for level, is_ahead in ((15.1, False), (25.0, False), (25.1, True)):
        site.level.set_tag(0.0, gold, level, 0.0)
        assert site.level.is_ahead(0.0) is is_ahead, level
    site.queue("b")
    site.level.set_tag(0.0, tin, 25.0, 0.0)
    assert not site.level.is_ahead(0.0)
    site.level.set_tag(0.0, tin, 25.1, 0.0)
    assert site.level.is_ahead(0.0)


def test_light_requests_are_counted_among_the_next_tenants_only() -> None:
    site = Site("r0", {f"t{n}": 1.0 for n in range(MAX_FLOWS + 20)})
    for n in range(MAX_FLOWS + 20):
        site.queue(f"t{n}")
    node, asked = site.pool.nodes["default"], list[str]()

    def is_light(flow: object) -> bool:
        asked.append(repr(flow))
        return False

    assert light_requests(first_flows(node), is_light) == 0
    assert len(asked) == MAX_FLOWS
    assert light_requests(first_flows(node), lambda flow: True) == MAX_WANTED
