"""Classes and tenants change while requests wait and run: by a reload, by a client, by an operator."""

from __future__ import annotations

import pytest

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted, Rejection
from services.core.drr import FORGET_AFTER_S
from services.core.outcome import Outcome
from services.core.request import Stage
from tests.core.house import ROOMY, House, settings

CLASSES = (ClassSpec("default"), ClassSpec("gold", 8.0), ClassSpec("batch", 0.5))


def house(slots: int = 1, **changes: object) -> House:
    """With a tenant in the middle class, and one above it."""
    made = House(slots, chosen=settings(classes=CLASSES, standing_queue=False, **changes))
    made.scheduler.configure(TenantSpec("a", ROOMY))
    made.scheduler.configure(TenantSpec("gold", ROOMY, class_name="gold"))
    return made


def shares(made: House, *tenants: str, until_s: float = 20.0, **fields: object) -> list[float]:
    """What part of the answers each has had, when all always want more. Each stands in line at all times."""
    began = made.now

    def keep_asking(tenant: str) -> None:
        account = made.scheduler.drr.tenants.get(tenant)
        for _ in range(4 - (account.usage.requests if account else 0)):
            made.offer(tenant, slack_s=1000.0, **fields if tenant == tenants[0] else {})

    for tenant in tenants:
        made.every(0.05, began + until_s, lambda tenant=tenant: keep_asking(tenant), jitter=False)
    made.run(began + until_s)
    started = [sum(each.started_at > began and each.tenant == tenant for each in made.waits_s) for tenant in tenants]
    return [count / sum(started) for count in started]


# ---- a class below its own


def test_who_asks_for_a_lower_class_is_served_with_it() -> None:
    own, lowered = shares(house(), "gold", "a"), shares(house(), "gold", "a", class_name="batch")
    assert own == pytest.approx([8 / 9, 1 / 9], abs=0.03)
    assert lowered == pytest.approx([1 / 3, 2 / 3], abs=0.05)


@pytest.mark.parametrize("asked", ["gold", "default", "", "no such class"])
def test_a_class_that_is_not_below_its_own_leaves_it_where_it_is(asked: str) -> None:
    made = house()
    request = made.request("a", class_name=asked)
    made.put(request)
    assert request.flow is made.scheduler.drr.tenants["a"].flows["default"]
    assert request.flow.node.name == "default"


def test_bounds_hold_over_all_classes_of_a_tenant_together() -> None:
    made = house()
    made.scheduler.configure(TenantSpec("a", QueueBounds(3)))
    made.fill("b", answer=100)
    said = [made.offer("a", slack_s=1000.0, class_name=name) for name in ("", "batch", "", "batch")]
    assert [isinstance(each, Admitted) for each in said] == [True, True, True, False]
    assert isinstance(said[-1], Rejection)
    assert said[-1].outcome is Outcome.TENANT_QUEUE_FULL


def test_debt_is_not_left_behind_in_a_lower_class() -> None:
    made = house(quantum_tokens=100.0)
    made.offer("a", slack_s=1000.0, answer=200)
    made.run(5.0)
    own = made.scheduler.drr.tenants["a"].flows["default"]
    owed = own.node.flows.owed(made.now, own)
    assert owed > 0
    made.offer("a", class_name="batch")
    assert own.node.flows.owed(made.now, own) == pytest.approx(owed)


def test_what_is_known_of_a_tenants_answers_is_known_in_every_class() -> None:
    made = house()
    made.warm("a")
    made.offer("a", class_name="batch")
    (other,) = made.scheduler.drr.tenants["a"].others.values()
    assert other.stats.lengths is made.scheduler.drr.tenants["a"].flows["default"].stats.lengths


# ---- a reload


def test_a_new_weight_counts_at_once_for_those_who_wait() -> None:
    made = house()
    assert shares(made, "a", "b") == pytest.approx([0.5, 0.5], abs=0.05)
    made.scheduler.configure(TenantSpec("a", ROOMY, weight=3.0))
    assert shares(made, "a", "b") == pytest.approx([0.75, 0.25], abs=0.05)


def test_a_new_class_is_that_of_the_next_request_and_who_waits_keeps_its_place() -> None:
    made = house()
    made.fill("gold", answer=100)
    before, after = made.request("a", slack_s=1000.0), made.request("a", slack_s=1000.0)
    made.put(before)
    made.scheduler.configure(TenantSpec("a", ROOMY, class_name="gold"))
    made.put(after)
    assert [each.flow.node.name for each in (before, after)] == ["default", "gold"]
    assert before.flow.stats.lengths is after.flow.stats.lengths
    made.run(20.0)
    assert [made.fates[each] for each in (before, after)] == [Outcome.SERVED] * 2
    made.scheduler.configure(TenantSpec("a", ROOMY))
    again = made.request("a")
    made.put(again)
    assert again.flow is before.flow


def test_new_bounds_keep_out_the_next_one_and_take_out_nobody() -> None:
    made = house()
    made.fill("b", answer=100)
    waiting = [made.request("a", slack_s=1000.0) for _ in range(3)]
    for request in waiting:
        made.put(request)
    made.scheduler.configure(TenantSpec("a", QueueBounds(1)))
    assert isinstance(made.offer("a", slack_s=1000.0), Rejection)
    made.run(30.0)
    assert [made.fates[each] for each in waiting] == [Outcome.SERVED] * 3


def test_new_weights_of_classes_count_at_once_and_a_new_class_can_be_used() -> None:
    made = house()
    assert shares(made, "gold", "a") == pytest.approx([8 / 9, 1 / 9], abs=0.03)
    classes = (ClassSpec("default"), ClassSpec("gold", 2.0), ClassSpec("silver"))
    specs = [TenantSpec("a", ROOMY), TenantSpec("gold", ROOMY, class_name="gold")]
    made.scheduler.reload(made.now, classes, [*specs, TenantSpec("s", ROOMY, class_name="silver")])
    assert shares(made, "gold", "a") == pytest.approx([2 / 3, 1 / 3], abs=0.05)
    assert shares(made, "gold", "a", "s") == pytest.approx([0.5, 0.25, 0.25], abs=0.05)


def test_a_second_class_can_come_while_the_first_is_at_work() -> None:
    made = House(1, chosen=settings(standing_queue=False))
    made.scheduler.configure(TenantSpec("a", ROOMY))
    made.fill("a", waiting=3)
    before = list(made.admitted)
    classes = (ClassSpec("default"), ClassSpec("gold", 3.0))
    made.scheduler.reload(made.now, classes, [TenantSpec("a", ROOMY), TenantSpec("gold", ROOMY, class_name="gold")])
    pool = made.scheduler.pools["default"].pool
    assert (pool.classes.backlog, pool.nodes["default"].backlog) == (3, 3)
    assert shares(made, "gold", "a", until_s=60.0) == pytest.approx([0.75, 0.25], abs=0.05)
    made.run(made.now + 20.0)
    assert [made.fates[each] for each in before] == [Outcome.SERVED] * 4
    assert [node.unsettled for node in pool.nodes.values()] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_shares_follow_the_new_weights_of_classes_while_their_tenants_wait() -> None:
    made = house()
    made.fill("a", waiting=1)
    made.offer("gold", slack_s=1000.0)
    specs = [TenantSpec("a", ROOMY), TenantSpec("gold", ROOMY, class_name="gold")]
    made.scheduler.reload(made.now, (ClassSpec("default"), ClassSpec("gold", 3.0)), specs)
    pool = made.scheduler.pools["default"].pool
    for tenant, share in {"a": 0.25, "gold": 0.75}.items():
        flow = made.scheduler.drr.tenants[tenant].flows["default"]
        assert (pool.share(flow), made.scheduler.pools["default"].classes[flow.node.name].weight) == (share, share * 4)


def test_a_tenant_that_is_named_no_more_ends_what_it_began_and_is_then_forgotten() -> None:
    made = house()
    running, waiting = made.request("a", slack_s=100.0), made.request("a", slack_s=100.0)
    made.put(running)
    made.put(waiting)
    made.scheduler.reload(made.now, CLASSES, [TenantSpec("gold", ROOMY, class_name="gold")])
    made.run(5.0)
    assert [made.fates[each] for each in (running, waiting)] == [Outcome.SERVED] * 2
    assert "a" in made.scheduler.drr.tenants
    made.run(FORGET_AFTER_S + 10.0)
    assert not made.scheduler.dismiss(made.now, "nobody")
    assert set(made.scheduler.drr.tenants) == {"gold"}


def test_a_reload_that_cannot_be_changes_nothing() -> None:
    made = house()
    with pytest.raises(ValueError, match="no class for x, y"):
        made.scheduler.reload(
            0.0,
            (ClassSpec("default"), ClassSpec("new")),
            [TenantSpec("x", ROOMY, class_name="batch"), TenantSpec("y", ROOMY, class_name="gold")],
        )
    with pytest.raises(ValueError, match="unconfigured tenants are of class default"):
        made.scheduler.reload(0.0, (ClassSpec("new"),), [])
    with pytest.raises(ValueError, match="differ in name"):
        made.scheduler.reload(0.0, (ClassSpec("default"), ClassSpec("default")), [])
    assert made.scheduler.settings.classes == made.scheduler.drr.classes == CLASSES
    assert all(tenant.configured for tenant in made.scheduler.drr.tenants.values())


def test_who_waits_in_a_class_that_is_gone_is_served() -> None:
    made = house()
    made.fill("a", answer=100)
    request = made.request("gold", slack_s=100.0)
    made.put(request)
    made.scheduler.reload(made.now, (ClassSpec("default"),), [TenantSpec("gold", ROOMY)])
    made.run(10.0)
    assert made.fates[request] is Outcome.SERVED
    other = made.request("gold", pool="other")
    made.scheduler.capacity(made.now, 1, "other")
    assert isinstance(made.scheduler.admit(made.now, other), Admitted)


# ---- an operator's word


def test_a_level_that_an_operator_holds_takes_the_place_of_the_automatic_one() -> None:
    made = house(slots=4)
    made.scheduler.hold_level("default", 3)
    held, above = made.request("a", max_level=4), made.request("gold", max_level=4)
    made.put(held)
    made.put(above)
    assert (held.level, above.level) == (3, 0)
    made.scheduler.hold_level("default", None)
    free = made.request("a", max_level=4)
    made.put(free)
    assert free.level == 0


def test_no_request_is_held_deeper_than_its_tenant_allows() -> None:
    made = house(slots=2)
    made.scheduler.hold_level(None, 4)
    assert [made.scheduler.held(spec.name) for spec in CLASSES] == [4, 4, 4]
    said = [made.offer("a", max_level=level) for level in (0, 2)]
    assert [each.level for each in said if isinstance(each, Admitted)] == [0, 2]


def test_one_that_would_be_refused_is_tried_below_the_level_that_is_held() -> None:
    made = house()
    made.scheduler.hold_level(None, 0)
    said = made.offer("a", slack_s=0.1, context_tokens=2000, max_level=4)
    assert isinstance(said, Admitted)
    assert said.level > 0


def test_a_level_or_class_that_is_not_there_cannot_be_held() -> None:
    made = house()
    with pytest.raises(ValueError, match="levels are 0 to 4"):
        made.scheduler.hold_level("default", 5)
    with pytest.raises(ValueError, match="no class none"):
        made.scheduler.hold_level("none", 1)
    assert made.scheduler.held("default") is None


def test_a_request_that_waits_when_it_is_reloaded_is_running_afterwards_in_its_old_line() -> None:
    made = house()
    made.fill("b", answer=20)
    request = made.request("a", slack_s=100.0)
    made.put(request)
    made.scheduler.reload(made.now, CLASSES, [TenantSpec("a", ROOMY, 2.0, "batch")])
    made.run(made.now + 0.3)
    assert request.stage is Stage.RUNNING
    assert request.flow.node.name == "default"
