"""The deck: sixty faults of every kind, aimed by a seed, and whom each may hit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from loadtests.runs.many.addresses import net_of
from loadtests.runs.many.deck import (
    ALL,
    HOLDS_S,
    OF_LINKS,
    OF_ROUTERS,
    OF_THE_STORE,
    OF_WORKERS,
    TIMES,
    Fault,
    What,
    deal,
    groups,
)
from loadtests.runs.many.injection import FROZEN, KILLED, RULES
from loadtests.runs.many.sizes import ANSWER_TOKENS, FULL, QUICK, TTL_S
from loadtests.runs.many.tenants import ASKERS, ingress, tenants_file
from services.core.leases.times import ttl_s
from services.router.tenancy import tenantsfile

NET = net_of(4, 4)


def test_sixty_faults_are_the_whole_deck_whatever_the_seed() -> None:
    assert len(ALL) == FULL.faults == 60
    for seed in range(20):
        assert Counter(fault.what for fault in deal(seed, 60, NET)) == Counter(TIMES)


def test_a_short_run_begins_with_one_of_each_kind() -> None:
    for seed in range(20):
        assert {fault.what for fault in deal(seed, len(TIMES), NET)} == set(What)


def test_the_same_seed_deals_the_same_and_another_one_does_not() -> None:
    assert deal(1, 150, NET) == deal(1, 150, NET)
    assert deal(1, 60, NET) != deal(2, 60, NET)


def test_each_fault_is_aimed_at_what_it_is_done_to() -> None:
    routers, workers = {node.name for node in NET.routers}, {node.name for node in NET.workers}
    for fault in deal(3, 60, NET):
        assert (fault.router in routers) == (fault.what in (*OF_ROUTERS, *OF_LINKS)), fault
        assert (fault.worker in workers) == (fault.what in (*OF_WORKERS, *OF_LINKS)), fault


def test_every_kind_has_a_length_a_target_and_a_way_to_be_done() -> None:
    assert set(HOLDS_S) == set(TIMES) == set(What) == {*OF_ROUTERS, *OF_WORKERS, *OF_THE_STORE, *OF_LINKS}
    assert set(RULES) == set(OF_LINKS)
    cables = {What.ROUTER_UNPLUGGED, What.WORKER_UNPLUGGED, What.STORE_UNPLUGGED}
    assert {*RULES, *KILLED, *FROZEN, *cables} == set(What)


def test_what_is_cut_or_frozen_lasts_longer_than_a_lease() -> None:
    assert ttl_s(FULL.workers) == ttl_s(QUICK.workers) == TTL_S
    assert all(HOLDS_S[what] > TTL_S for what in What if what not in KILLED)


@pytest.mark.parametrize(
    ("fault", "router", "workers", "hits"),
    [
        (Fault(What.ROUTER_FROZEN, router="r0"), "r0", (), True),
        (Fault(What.ROUTER_FROZEN, router="r0"), "r1", ("w0",), False),
        (Fault(What.WORKER_FROZEN, worker="w0"), "r1", ("w0",), True),
        (Fault(What.WORKER_FROZEN, worker="w0"), "r1", ("w1",), False),
        (Fault(What.WORKER_FROZEN, worker="w0"), "r1", (), True),
        (Fault(What.LINK_CUT, "r0", "w0"), "r0", ("w1", "w0"), True),
        (Fault(What.LINK_CUT, "r0", "w0"), "r0", ("w1",), False),
        (Fault(What.LINK_CUT, "r0", "w0"), "r1", ("w0",), False),
        (Fault(What.STORE_FROZEN), "r0", ("w0",), False),
    ],
)
def test_a_fault_hits_the_requests_of_its_router_and_of_its_worker_and_the_stores_hits_none(
    fault: Fault, router: str, workers: tuple[str, ...], hits: bool
) -> None:
    assert fault.may_hit(router, workers) is hits


def test_groups_hold_all_faults_in_their_order() -> None:
    faults = deal(1, 7, NET)
    some = list(groups(faults, 3))
    assert [len(group) for group in some] == [3, 3, 1]
    assert tuple(fault for group in some for fault in group) == faults


def test_eight_tenants_ask_for_twice_the_capacity_and_only_the_light_one_for_less_than_its_share(tmp_path) -> None:
    assert len(ASKERS) == 8
    assert sum(asker.part for asker in ASKERS) == pytest.approx(1.0)
    weights = sum(asker.weight for asker in ASKERS)
    below = [asker.name for asker in ASKERS if 2 * asker.part < asker.weight / weights]
    assert below == ["light"]
    file = tmp_path / "tenants.yaml"
    file.write_text(tenants_file(), encoding="utf-8")
    read = tenantsfile.read(file)
    assert {tenant.id: tenant.weight for tenant in read.tenants} == {each.name: each.weight for each in ASKERS}


def test_the_first_router_gets_most_of_the_requests() -> None:
    assert ingress(4) == pytest.approx((0.7, 0.1, 0.1, 0.1))
    assert ingress(1) == (1.0,)
    assert sum(ingress(3)) == pytest.approx(1.0)


def test_a_whole_run_offers_eighty_to_a_hundred_requests_a_second_and_enough_of_them() -> None:
    assert ANSWER_TOKENS == 14
    assert 80 <= FULL.per_s <= 100
    groups_of = -(-FULL.faults // FULL.per_group)
    assert FULL.per_s * (4 * FULL.faults + groups_of * FULL.calm_s + FULL.frozen_s) > FULL.requests
    assert FULL.is_whole
    assert not QUICK.is_whole


def test_a_run_with_fewer_faults_sends_fewer_requests_and_is_not_published() -> None:
    assert FULL.scaled(12).requests == FULL.requests / 5
    assert (FULL.scaled(60), QUICK.scaled(1).requests) == (FULL, QUICK.requests // 4)
    assert not FULL.scaled(59).is_whole
    assert not replace(FULL, routers=1).is_whole


def test_a_run_has_three_times_its_estimate() -> None:
    assert FULL.limit_s == 3 * FULL.takes_s
