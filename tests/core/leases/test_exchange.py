"""The arithmetic of the exchange, by its vectors, and what it forgets."""

from __future__ import annotations

import pytest

from services.core.leases.exchange import (
    FORGET_AT_ONCE,
    FORGET_ROUTER_S,
    FORGET_S,
    UsageExchange,
    UsageReport,
    UsageRow,
)
from tests.core.leases.vectors import cases, played


@pytest.mark.parametrize("name", list(cases()))
def test_every_vector_is_answered_as_the_file_says(name: str) -> None:
    for expected, found in played(cases()[name], UsageExchange):
        assert found == expected


def test_tenants_that_nobody_reports_are_forgotten_a_hundred_at_a_time() -> None:
    store = UsageExchange("x")
    rows = tuple(UsageRow(f"t{n}", "default", 1.0, served=1.0) for n in range(250))
    store.call(0.0, UsageReport("r0", (1, 1), "x", (), rows))
    for call, left in ((2, 250 - FORGET_AT_ONCE), (3, 250 - 2 * FORGET_AT_ONCE), (4, 0), (5, 0)):
        store.call(FORGET_S + call, UsageReport("r0", (1, call), "x", (), ()))
        assert len(store._sums) == left


def test_a_tenant_that_is_reported_again_is_not_in_the_way_of_those_to_be_forgotten() -> None:
    store = UsageExchange("x")
    for now, call, tenants in ((0.0, 1, "ab"), (400.0, 2, "a"), (FORGET_S + 1.0, 3, "")):
        rows = tuple(UsageRow(tenant, "default", 1.0, served=1.0) for tenant in tenants)
        store.call(now, UsageReport("r0", (1, call), "x", (), rows))
    assert [tenant for tenant, _ in store._sums] == ["a"]


def test_a_router_that_has_not_called_for_a_day_is_forgotten_and_one_that_was_cut_off_for_less_is_not() -> None:
    store = UsageExchange("x")
    report = UsageReport("r0", (1, 1), "x", (), (UsageRow("a", "default", 1.0, served=1.0),))
    others = UsageReport("r1", (1, 1), "x", (), ())
    store.call(0.0, report)
    store.call(FORGET_ROUTER_S / 2, others)
    store.call(FORGET_ROUTER_S, others)
    assert store.call(FORGET_ROUTER_S, report).classes == (("default", 1.0, 1.0),), "it was added before"
    store.call(2 * FORGET_ROUTER_S + 1, others)
    assert list(store._stamps) == ["r1"]
