"""What a tenant may have waiting, and what is impossible to configure."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.account import ClassSpec, QueueBounds, QueueLimit, QueueUsage, TenantAccount, TenantSpec
from services.core.pool import floored
from tests.core.rig import asking


@pytest.mark.parametrize(
    "bounds",
    [{"requests": 0}, {"requests": -1}, {"requests": 1, "cost_tokens": 0.0}, {"requests": 1, "bytes": nan}],
)
def test_bounds_that_leave_no_room_for_one_request_are_refused(bounds: dict[str, float]):
    with pytest.raises(ValueError, match="room for one request"):
        QueueBounds(**bounds)


@pytest.mark.parametrize("weight", [0.0, -1.0, inf, nan])
def test_a_weight_must_be_above_zero_and_finite(weight: float):
    with pytest.raises(ValueError, match="tenant a: weight"):
        TenantSpec("a", QueueBounds(1), weight=weight)
    with pytest.raises(ValueError, match="class a: weight"):
        ClassSpec("a", weight=weight)


@pytest.mark.parametrize("floor", [-0.1, 1.0, nan])
def test_a_floor_is_a_share_below_all(floor: float):
    with pytest.raises(ValueError, match="floor"):
        ClassSpec("a", floor=floor)


def test_the_bound_that_would_break_first_is_the_one_that_is_named():
    usage = QueueUsage(QueueBounds(2, cost_tokens=100.0, bytes=1000))
    assert usage.limit_exceeded_by(asking("a", 100.0, size=1000)) is None
    assert usage.limit_exceeded_by(asking("a", 100.1)) == 1
    assert usage.limit_exceeded_by(asking("a", 1.0, size=1001)) == 2
    usage.take(asking("a", 1.0))
    usage.take(asking("a", 1.0))
    assert usage.limit_exceeded_by(asking("a", 1000.0, size=9999)) == 0


def test_usage_is_nothing_again_when_all_have_left_however_its_sum_drifted():
    usage = QueueUsage(QueueBounds(10))
    requests = [asking("a", cost) for cost in (1e16, 0.1, 0.7)]
    for request in requests:
        usage.take(request)
    for request in requests:
        usage.give_back(request)
    assert (usage.requests, usage.cost_tokens, usage.bytes) == (0, 0.0, 0)


def test_a_bound_of_the_tenant_is_told_from_one_of_the_platform():
    assert [full.of_tenant for full in QueueLimit] == [True] * 3 + [False] * 3


def test_a_tenant_is_busy_while_anything_of_it_waits_or_runs():
    tenant = TenantAccount(TenantSpec("a", QueueBounds(1)), configured=True)
    assert not tenant.busy
    tenant.running = 1
    assert tenant.busy
    tenant.running = 0
    tenant.usage.take(asking("a"))
    assert tenant.busy
    assert repr(tenant) == "<TenantAccount a: 1 wait, 0 run, charged 0, []>"


def shares(*classes: ClassSpec) -> dict[str, float]:
    weights = floored(classes)
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def test_a_floor_below_the_share_changes_nothing():
    assert floored((ClassSpec("a", 3.0), ClassSpec("b", 1.0, floor=0.2))) == {"a": 3.0, "b": 1.0}


def test_a_class_below_its_floor_is_raised_to_it_exactly():
    assert shares(ClassSpec("a", 98.0), ClassSpec("b", 2.0, floor=0.1)) == pytest.approx({"a": 0.9, "b": 0.1})


def test_several_floors_hold_together():
    found = shares(ClassSpec("a", 98.0), ClassSpec("b", 1.0, floor=0.05), ClassSpec("c", 1.0, floor=0.05))
    assert found == pytest.approx({"a": 0.9, "b": 0.05, "c": 0.05})


def test_raising_one_class_does_not_push_another_below_its_floor():
    found = shares(ClassSpec("a", 60.0), ClassSpec("b", 1.0, floor=0.5), ClassSpec("c", 10.0, floor=0.14))
    assert found["b"] == pytest.approx(0.5)
    assert found["c"] == pytest.approx(0.14)


@given(
    classes=st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(0, 0.19)), min_size=1, max_size=5).map(
        lambda rows: tuple(ClassSpec(str(at), weight, floor) for at, (weight, floor) in enumerate(rows))
    )
)
def test_no_class_falls_below_its_floor_and_those_above_keep_their_proportions(classes: tuple[ClassSpec, ...]):
    weights = floored(classes)
    total = sum(weights.values())
    for spec in classes:
        assert weights[spec.name] / total >= spec.floor * (1 - 1e-9)
        assert weights[spec.name] >= spec.weight * (1 - 1e-9)
