"""Rings on one clock: no credit for time without work, and no debt that stands still."""

from __future__ import annotations

import pytest

from services.core.leases.level import MAX_FLOWS, MAX_WANTED, CommonClock, light_requests
from tests.core.leases.rig import QUANTUM, Site


def test_a_ring_that_begins_to_wait_is_set_to_the_lowest_level_and_not_below() -> None:
    clock = CommonClock()
    clock.receive(100.0)
    assert clock.wait(30.0) == 100.0
    assert clock.wait(40.0) == 110.0
    clock.receive(500.0)
    assert clock.wait(40.0) == 110.0, "it waits already"
    clock.rest()
    assert clock.wait(40.0) == 500.0


def test_a_ring_that_is_ahead_stays_ahead() -> None:
    clock = CommonClock()
    clock.receive(10.0)
    assert clock.wait(80.0) == 80.0


def test_the_lowest_level_never_falls() -> None:
    clock = CommonClock()
    for lowest in (10.0, 5.0, float("inf")):
        clock.receive(lowest)
    assert clock.lowest == 10.0


def test_wants_are_what_could_start_by_class() -> None:
    site = Site(
        "r0", {"a": 1.0, "b": 1.0}, classes={"gold": 8.0, "tin": 1.0}, of_class={"a": "gold", "b": "tin"}
    )  # fmt: skip
    site.queue("a", 3)
    site.queue("b", 100)
    wants = {want.class_name: want for want in site.level.wants(lambda flow: flow.tenant.id == "a")}
    assert (wants["gold"].requests, wants["gold"].light) == (3, 3)
    assert (wants["tin"].requests, wants["tin"].light) == (MAX_WANTED, 0)
    assert Site("r1", {}).level.wants(lambda flow: True) == ()


def test_the_turn_of_a_class_is_what_all_routers_served_and_this_one_since() -> None:
    site = Site("r0", {"a": 1.0}, classes={"gold": 8.0, "tin": 1.0})
    site.queue("a", 5)
    site.serve(2)
    node = site.pool.nodes["gold"]
    site.level.set_turn("gold", 100.0, 20.0)
    assert site.level.turn(node) == 100.0
    site.serve(2)
    assert site.level.turn(node) == pytest.approx(100.0 + 20.0 / 8.0)


def test_a_ring_without_work_follows_the_others_so_that_debts_are_paid() -> None:
    site = Site("r0", {"a": 1.0})
    site.queue("a")
    site.serve(1)
    flow = site.drr.tenants["a"].flows["default"]
    site.pool.charge_elsewhere(0.0, flow, 100.0)
    owed = -flow.node.flows.deficit_at(0.0, flow)
    assert owed > 90.0
    site.level.receive({"default": 60.0})
    assert -flow.node.flows.deficit_at(0.0, flow) == pytest.approx(owed - 60.0)
    site.level.receive({"default": 1e6})
    assert flow.node.flows.deficit_at(0.0, flow) == QUANTUM


def test_a_ring_with_work_is_not_moved() -> None:
    site = Site("r0", {"a": 1.0})
    site.queue("a")
    site.level.receive({"default": 1e6, "unknown": 5.0})
    assert site.pool.nodes["default"].flows.given == 0.0


def test_a_router_is_ahead_when_all_its_classes_are() -> None:
    site = Site("r0", {"a": 1.0})
    assert not site.level.is_ahead()
    site.queue("a", 50)
    site.level.receive({"default": 5.0})
    site.serve(9)
    assert site.level.is_ahead()
    site.level.clock("default").receive(1e6)
    assert not site.level.is_ahead()


def test_light_requests_are_counted_among_the_next_tenants_only() -> None:
    site = Site("r0", {f"t{n}": 1.0 for n in range(MAX_FLOWS + 20)})
    for n in range(MAX_FLOWS + 20):
        site.queue(f"t{n}")
    node, asked = site.pool.nodes["default"], list[str]()

    def is_light(flow: object) -> bool:
        asked.append(repr(flow))
        return False

    assert light_requests(node, is_light) == 0
    assert len(asked) == MAX_FLOWS
    assert light_requests(node, lambda flow: True) == MAX_WANTED
