"""The scheduler: whose turn it is, what it holds, what it charges, and what it forgets."""

from __future__ import annotations

from math import inf, nan

import pytest

from services.core.account import ClassSpec, QueueBounds, QueueLimit, TenantSpec
from services.core.drr import FORGET_AFTER_S, Drr
from services.core.pool import ACTIVE_FOR_S
from services.core.request import Request, Stage
from services.core.schedulable import RingPosition
from tests.core.rig import NO_BOUNDS, asking, enqueue, house, kept, serve, standing, start


def meet(drr: Drr, tenant: str, now: float = 0.0) -> None:
    drr.create_unconfigured(now, TenantSpec(tenant, NO_BOUNDS))


def end(drr: Drr, request: Request, actual: float | None = None, now: float = 0.0) -> None:
    drr.settle(now, request, request.charge_tokens if actual is None else actual)


# ---- order


def test_equal_tenants_take_turns_whoever_came_first():
    drr = house("ab")
    enqueue(drr, *(asking("a") for _ in range(5)), *(asking("b") for _ in range(5)))
    assert serve(drr, 10) == "ababababab"


def test_within_a_tenant_the_earliest_deadline_goes_first():
    drr = house("a")
    late, soon, middle = enqueue(drr, asking("a", deadline=9.0), asking("a", deadline=1.0), asking("a", deadline=5.0))
    assert [start(drr) for _ in range(3)] == [soon, middle, late]


def test_a_near_deadline_does_not_help_a_tenant_against_another():
    drr = house("ab")
    enqueue(drr, *(asking("a") for _ in range(4)), *(asking("b", deadline=1.0) for _ in range(4)))
    assert serve(drr, 8).count("a") == 4


def test_weights_share_the_work():
    drr = house({"a": 3.0, "b": 1.0})
    enqueue(drr, *(asking(tenant) for tenant in "ab" for _ in range(100)))
    assert abs(serve(drr, 80).count("a") - 60) <= 3


def test_a_class_shares_by_its_weight_and_its_tenants_by_theirs():
    drr = house(classes=(ClassSpec("gold", 3.0), ClassSpec("tin", 1.0)))
    for tenant, weight, name in (("a", 2.0, "gold"), ("b", 1.0, "gold"), ("c", 1.0, "tin")):
        drr.configure(TenantSpec(tenant, NO_BOUNDS, weight=weight, class_name=name))
    enqueue(drr, *(asking(tenant) for tenant in "abc" for _ in range(500)))
    served = serve(drr, 400)
    for tenant, share in (("a", 0.5), ("b", 0.25), ("c", 0.25)):
        assert abs(served.count(tenant) - 400 * share) <= 4


def test_what_a_class_leaves_the_others_take():
    drr = house(classes=(ClassSpec("gold", 9.0), ClassSpec("tin", 1.0)))
    drr.configure(TenantSpec("c", NO_BOUNDS, class_name="tin"))
    enqueue(drr, *(asking("c") for _ in range(10)))
    assert serve(drr, 10) == "c" * 10


def test_a_flattering_estimate_gains_nothing_because_the_rest_is_billed_at_the_end():
    drr = house("ab")
    enqueue(drr, *(asking(tenant, 1.0 if tenant == "a" else 20.0) for tenant in "ab" for _ in range(1000)))
    work = {"a": 0.0, "b": 0.0}
    for _ in range(600):
        request = start(drr)
        end(drr, request, 10.0)
        work[request.tenant] += 10.0
    assert abs(work["a"] - work["b"]) <= 20 + 40


def test_the_true_up_reaches_the_class_too():
    drr = house(classes=(ClassSpec("gold"), ClassSpec("tin")))
    drr.configure(TenantSpec("a", NO_BOUNDS, class_name="gold"))
    drr.configure(TenantSpec("b", NO_BOUNDS, class_name="tin"))
    enqueue(drr, *(asking(tenant, 1.0 if tenant == "a" else 20.0) for tenant in "ab" for _ in range(1000)))
    work = {"a": 0.0, "b": 0.0}
    for _ in range(600):
        request = start(drr)
        end(drr, request, 10.0)
        work[request.tenant] += 10.0
    assert abs(work["a"] - work["b"]) <= 20 + 40


def test_renaming_the_tenants_changes_nothing():
    def schedule(names: str) -> list[int]:
        drr = house(names)
        requests = enqueue(drr, *(asking(names[at % 3], cost=1.0 + at % 7, deadline=100.0 - at) for at in range(60)))
        order = []
        for _ in range(60):
            request = start(drr)
            end(drr, request, 3.0)
            order.append(requests.index(request))
        return order

    assert schedule("abc") == schedule("cab") == schedule("zay")


# ---- readiness, and what does not fit


def test_a_request_whose_retrieval_runs_is_passed_over_and_keeps_its_place():
    drr = house("a")
    slow, quick = enqueue(drr, asking("a", deadline=1.0, ready=False), asking("a", deadline=2.0))
    assert start(drr) is quick
    assert drr.next(0.0, "default") is None
    drr.make_ready(0.0, slow)
    assert start(drr) is slow


def test_a_slot_does_not_wait_for_a_tenant_that_has_nothing_ready():
    drr = house("ab")
    enqueue(drr, asking("a", ready=False), *(asking("b") for _ in range(3)))
    assert serve(drr, 3) == "bbb"


def test_becoming_ready_is_only_marked_on_one_that_does_not_wait():
    drr = house("a")
    early = asking("a", ready=False)
    drr.make_ready(0.0, early)
    assert early.ready
    enqueue(drr, early)
    assert start(drr) is early
    drr.make_ready(0.0, early)
    assert early.stage is Stage.RUNNING


def test_becoming_ready_twice_counts_once():
    drr = house("a")
    (request,) = enqueue(drr, asking("a", ready=False))
    drr.make_ready(0.0, request)
    drr.make_ready(0.0, request)
    assert drr.pools["default"].classes.backlog == 1


def test_a_head_that_does_not_fit_is_passed_over_and_is_first_again_afterwards():
    drr = house("ab")
    big, *_ = enqueue(drr, asking("a", size=9), asking("b", size=1), asking("b", size=1))
    passed = drr.next(0.0, "default", fits=lambda request: request.bytes < 5)
    assert passed is not None
    assert passed.tenant == "b"
    assert start(drr) is big


def test_nobody_starts_when_nothing_fits_and_nothing_has_changed():
    drr = house("abc", classes=())
    enqueue(drr, *(asking(tenant, 35.0) for tenant in "abc" for _ in range(20)))
    serve(drr, 8)
    drr.next(0.0, "default", fits=lambda request: False)
    before = repr(drr), [standing(drr, tenant) for tenant in "abc"]
    for _ in range(5):
        assert drr.next(0.0, "default", fits=lambda request: False) is None
    assert (repr(drr), [standing(drr, tenant) for tenant in "abc"]) == before


def test_a_glance_at_a_full_house_does_not_pay_a_debt():
    drr = house("ab")
    enqueue(drr, *(asking(tenant, 1000.0 if tenant == "a" else 10.0) for tenant in "ab" for _ in range(200)))
    serve(drr, 2)
    for _ in range(20):
        drr.next(0.0, "default", fits=lambda request: False)
    assert serve(drr, 90) == "b" * 90


def test_whoever_fits_is_found_behind_any_number_that_do_not():
    drr = house(classes=(ClassSpec("gold", 5.0), ClassSpec("tin")))
    for at in range(50):
        drr.configure(TenantSpec(f"t{at}", NO_BOUNDS, class_name="gold" if at % 2 else "tin"))
    enqueue(drr, *(asking(f"t{at}", size=int(at != 37)) for at in range(50)))
    found = drr.next(0.0, "default", fits=lambda request: not request.bytes)
    assert found is not None
    assert found.tenant == "t37"


# ---- charges


def test_what_was_charged_less_what_was_given_back_is_what_was_used():
    drr = house("ab")
    enqueue(drr, *(asking(tenant, cost) for tenant in "ab" for cost in (5.0, 50.0, 500.0)))
    used = {"a": 0.0, "b": 0.0}
    for at in range(6):
        request = start(drr)
        end(drr, request, 7.0 * at)
        used[request.tenant] += 7.0 * at
    assert {tenant: drr.tenants[tenant].charged for tenant in "ab"} == pytest.approx(used)


def test_a_second_settlement_is_an_error_and_changes_nothing():
    drr = house("a")
    enqueue(drr, asking("a"))
    request = start(drr)
    end(drr, request, 4.0)
    with pytest.raises(RuntimeError, match="does not run"):
        end(drr, request, 4.0)
    assert drr.tenants["a"].charged == 4.0
    assert drr.tenants["a"].running == 0


def test_one_that_never_ran_cannot_be_settled():
    drr = house("a")
    (request,) = enqueue(drr, asking("a"))
    with pytest.raises(RuntimeError, match="does not run"):
        end(drr, request)
    with pytest.raises(RuntimeError, match="does not run"):
        end(drr, asking("a"))


@pytest.mark.parametrize("stage", [Stage.WAITING, Stage.RUNNING, Stage.ENDED])
def test_a_request_comes_in_line_once(stage: Stage):
    drr = house("a")
    (request,) = enqueue(drr, asking("a"))
    if stage is not Stage.WAITING:
        start(drr)
    if stage is Stage.ENDED:
        end(drr, request)
    with pytest.raises(RuntimeError, match="in line before"):
        drr.enqueue(0.0, request)
    assert request.stage is stage


@pytest.mark.parametrize("cost", [-1.0, inf, nan])
def test_a_cost_that_cannot_be_is_refused_before_anything_changes(cost: float):
    drr = house("a")
    with pytest.raises(ValueError, match="cost"):
        drr.enqueue(0.0, asking("a", cost))
    del drr.tenants["a"]
    assert kept(drr) == {}


def test_a_new_price_changes_the_sums_and_not_the_place():
    drr = house("ab")
    enqueue(drr, *(asking(tenant) for tenant in "ab" for _ in range(3)))
    serve(drr, 1)
    first, second = drr.tenants["a"].flows["default"].queue
    drr.reprice(0.0, first, 70.0)
    assert drr.usage.cost_tokens == 70 + 10 + 30
    assert drr.pools["default"].work == 110
    assert serve(drr, 2) == "ba"
    assert first.stage is Stage.ENDED
    assert second.stage is Stage.WAITING
    assert drr.tenants["a"].charged == 80


def test_a_new_price_does_not_make_a_tenant_new():
    drr = house("abc")
    enqueue(drr, *(asking(tenant) for tenant in "abc" for _ in range(2)))
    serve(drr, 3)
    (last,) = drr.tenants["c"].flows["default"].queue
    drr.reprice(0.0, last, 20.0)
    assert serve(drr, 3) == "abc"


def test_a_new_price_while_it_runs_is_charged_at_once():
    drr = house("a")
    enqueue(drr, asking("a", 10.0))
    request = start(drr)
    drr.reprice(0.0, request, 60.0)
    assert standing(drr, "a") == 10 - 60
    end(drr, request, 5.0)
    assert standing(drr, "a") == 5
    assert drr.tenants["a"].charged == 5.0


# ---- bounds


@pytest.mark.parametrize(
    ("own", "everyone", "second", "full"),
    [
        (QueueBounds(1), NO_BOUNDS, asking("a"), QueueLimit.TENANT_REQUESTS),
        (QueueBounds(9, cost_tokens=15.0), NO_BOUNDS, asking("a"), QueueLimit.TENANT_COST),
        (QueueBounds(9, bytes=15), NO_BOUNDS, asking("a", size=10), QueueLimit.TENANT_BYTES),
        (NO_BOUNDS, QueueBounds(1), asking("b"), QueueLimit.REQUESTS),
        (NO_BOUNDS, QueueBounds(9, cost_tokens=15.0), asking("b"), QueueLimit.COST),
        (NO_BOUNDS, QueueBounds(9, bytes=15), asking("b", size=10), QueueLimit.BYTES),
    ],
)
def test_a_full_house_says_which_bound_and_changes_nothing(
    own: QueueBounds, everyone: QueueBounds, second: Request, full: QueueLimit
):
    drr = house("ab", own=own, bounds=everyone)
    enqueue(drr, asking("a", size=10))
    second.stage = Stage.NEW
    before = repr(drr), kept(drr)
    assert drr.enqueue(0.0, second) is full
    assert (repr(drr), kept(drr)) == before
    assert (second.stage, second.sequence) == (Stage.NEW, 0)


def test_a_tenant_has_one_account_over_all_pools():
    drr = house("a", own=QueueBounds(2))
    enqueue(drr, asking("a", pool="x"), asking("a", pool="y"))
    assert drr.enqueue(0.0, asking("a", pool="z")) is QueueLimit.TENANT_REQUESTS


def test_a_place_is_free_again_when_its_request_starts_leaves_or_expires():
    drr = house("a", own=QueueBounds(1))
    for leave in (lambda _: drr.next(0.0, "default"), lambda at: drr.discard(0.0, at), lambda _: drr.expire(2e9)):
        (request,) = enqueue(drr, asking("a"))
        leave(request)


# ---- leaving


def test_one_that_does_not_wait_is_not_discarded():
    drr = house("a")
    assert not drr.discard(0.0, asking("a"))
    (request,) = enqueue(drr, asking("a"))
    start(drr)
    before = repr(drr)
    assert not drr.discard(0.0, request)
    assert (repr(drr), request.stage) == (before, Stage.RUNNING)
    end(drr, request)
    assert not drr.discard(0.0, request)


def test_a_request_ends_once_however_often_it_is_discarded():
    drr = house("a")
    (request,) = enqueue(drr, asking("a"))
    assert drr.discard(0.0, request)
    assert not drr.discard(0.0, request)
    assert drr.next(0.0, "default") is None


def test_what_expires_is_what_is_due_and_nothing_else():
    drr = house("ab")
    requests = enqueue(drr, *(asking("ab"[at % 2], expires_at=float(at)) for at in range(10)))
    assert drr.wakes_at() == 0.0
    assert drr.expire(3.0) == requests[:4]
    assert drr.wakes_at() == 4.0
    assert drr.expire(3.999) == []
    assert {request.stage for request in requests[:4]} == {Stage.ENDED}


@pytest.mark.parametrize("later", [5.0, 0.5, 2.0, 1.0])
def test_one_whose_expiry_moves_expires_then_and_not_before(later: float) -> None:
    drr = house("ab")
    moved, other = enqueue(drr, asking("a", expires_at=1.0), asking("b", expires_at=3.0))
    drr.postpone(moved, 4.0)
    drr.postpone(moved, later)
    assert drr.wakes_at() == min(later, 3.0)
    assert drr.expire(2.9) == ([moved] if later < 2.9 else [])
    assert set(drr.expire(10.0)) == {moved, other} - ({moved} if later < 2.9 else set())
    assert drr.wakes_at() == inf
    assert "expiries" not in kept(drr)


def test_what_has_started_or_left_does_not_wake_anyone():
    drr = house("a")
    first, second, third = enqueue(drr, *(asking("a", deadline=float(at), expires_at=float(at)) for at in (1, 2, 3)))
    assert start(drr) is first
    assert drr.wakes_at() == 2.0
    drr.discard(0.0, second)
    assert drr.wakes_at() == 3.0
    drr.discard(0.0, third)
    assert drr.wakes_at() == inf


def test_the_heap_of_expiries_holds_little_more_than_what_waits():
    drr = house("a")
    enqueue(drr, *(asking("a") for _ in range(50)))
    for _ in range(2000):
        enqueue(drr, request := asking("a", expires_at=1.0 + _))
        drr.discard(0.0, request)
    assert len(drr._expiries) <= 2 * 50 + 64 + 2


def test_the_heap_is_cleaned_in_the_midst_of_a_change_of_expiry_and_counts_right():
    """Found by a run over real processes: one in some seventy changes of an expiry cleans the heap."""
    drr = house("a")
    (moved,) = enqueue(drr, asking("a", expires_at=1.0))
    for at in range(500):
        drr.postpone(moved, 2.0 + at)
    assert drr.wakes_at() == moved.expires_at
    assert drr.discard(0.0, moved)
    assert drr.wakes_at() == inf


# ---- debt


def test_a_tenant_in_debt_pauses_in_vain():
    drr = house("ab")
    enqueue(drr, asking("a", 100.0), *(asking("b") for _ in range(40)))
    assert serve(drr, 1) == "a"
    enqueue(drr, asking("a"))
    assert serve(drr, 9) == "b" * 9


def test_debt_halves_with_time_when_the_house_is_empty():
    drr = house("ab")
    enqueue(drr, asking("a", 110.0))
    serve(drr, 1)
    assert standing(drr, "a", now=0.0) == -100
    assert standing(drr, "a", now=60.0) == pytest.approx(10 - 55)


def test_debt_follows_a_tenant_to_another_pool():
    drr = house("ab")
    enqueue(drr, asking("a", 110.0, pool="x"))
    serve(drr, 1, pool="x")
    enqueue(drr, asking("a", pool="y"), *(asking("b", pool="y") for _ in range(20)))
    assert standing(drr, "a", pool="y") == -100 + 10
    assert standing(drr, "a", pool="x") == 0
    assert serve(drr, 9, pool="y") == "b" * 9


def test_what_still_runs_in_a_pool_is_put_right_there():
    drr = house("ab")
    enqueue(drr, asking("a", 110.0, pool="x"))
    runs = start(drr, pool="x")
    enqueue(drr, asking("a", pool="y"))
    assert standing(drr, "a", pool="y") == 10
    end(drr, runs, 10.0)
    assert standing(drr, "a", pool="x") == 0  # one quantum, used
    assert drr.tenants["a"].charged == 10.0


def test_debt_does_not_move_to_a_pool_where_the_tenant_is_at_work_already():
    drr = house("ab")
    enqueue(drr, asking("a", pool="y"), asking("a", 110.0, pool="x"))
    serve(drr, 1, pool="x")
    enqueue(drr, asking("a", pool="y"))
    assert standing(drr, "a", pool="y") == 10
    assert standing(drr, "a", pool="x") == -100


# ---- tenants that come and go


def test_a_tenant_that_nobody_configured_is_forgotten_some_time_after_its_last_request():
    drr = house()
    meet(drr, "u")
    enqueue(drr, asking("u"))
    assert drr.forget_idle(FORGET_AFTER_S * 9) == []
    request = start(drr, now=1.0)
    assert drr.forget_idle(FORGET_AFTER_S * 9) == []
    end(drr, request, now=2.0)
    assert drr.forget_idle(1.9 + FORGET_AFTER_S) == []
    assert drr.forget_idle(2.0 + FORGET_AFTER_S) == ["u"]
    drr.pools["default"].release_idle(FORGET_AFTER_S)
    assert kept(drr) == {}


def test_the_oldest_idle_strangers_are_forgotten_when_there_are_too_many():
    drr = house("a", idle_tenants=3)
    for tenant in "uvwxyz":
        meet(drr, tenant)
    assert drr.forget_idle(0.0) == ["u", "v", "w"]
    assert set(drr.tenants) == set("axyz")


def test_a_configured_tenant_is_never_forgotten():
    drr = house("a")
    meet(drr, "u")
    drr.configure(TenantSpec("u", NO_BOUNDS))
    enqueue(drr, asking("a"), asking("u"))
    serve(drr, 2)
    assert drr.forget_idle(1e9) == []


def test_a_known_tenant_is_not_met_again():
    drr = house("a")
    with pytest.raises(ValueError, match="known already"):
        meet(drr, "a")


def test_ten_thousand_unconfigured_tenants_leave_nothing_behind():
    drr = house(idle_tenants=10)
    for at in range(10_000):
        meet(drr, f"u{at}", now=at * 0.01)
        enqueue(drr, asking(f"u{at}", 1.0 + at % 50), now=at * 0.01)
        if at % 3:
            request = start(drr, now=at * 0.01)
            end(drr, request, at % 70, now=at * 0.01)
        drr.forget_idle(at * 0.01)
        drr.pools["default"].release_idle(at * 0.01)
    assert len(drr.tenants) <= 10 + drr.usage.requests
    serve(drr, drr.usage.requests, now=100.0)
    drr.forget_idle(1e6)
    drr.pools["default"].release_idle(1e6)
    assert kept(drr) == {}
    assert len(drr.pools["default"].nodes["default"].flows._later) <= 2 * 64


# ---- the configuration


def test_a_class_that_nobody_declared_is_refused_before_anything_changes():
    drr = house("a")
    with pytest.raises(ValueError, match="no class gold"):
        drr.configure(TenantSpec("u", NO_BOUNDS, class_name="gold"))
    with pytest.raises(ValueError, match="no class gold"):
        drr.create_unconfigured(0.0, TenantSpec("u", NO_BOUNDS, class_name="gold"))
    assert set(drr.tenants) == {"a"}


def test_two_classes_of_one_name_and_floors_of_all_are_refused():
    for classes in ((ClassSpec("a"), ClassSpec("a")), (ClassSpec("a", floor=0.5), ClassSpec("b", floor=0.5))):
        with pytest.raises(ValueError, match="classes"):
            Drr(quantum=10.0, bounds=NO_BOUNDS, classes=classes)


def test_a_weight_changed_at_run_time_shares_from_then_on():
    drr = house("ab")
    enqueue(drr, *(asking(tenant) for tenant in "ab" for _ in range(300)))
    assert abs(serve(drr, 40).count("a") - 20) <= 1
    drr.configure(TenantSpec("a", NO_BOUNDS, weight=3.0))
    assert abs(serve(drr, 80).count("a") - 60) <= 3


def test_a_quantum_changed_at_run_time_does_not_reach_back():
    drr = house("ab")
    enqueue(drr, *(asking(tenant) for tenant in "ab" for _ in range(400)))
    drr.enqueue(0.0, asking("a", 1000.0, deadline=-1.0))
    serve(drr, 60)
    before = standing(drr, "a")
    drr.pools["default"].set_quantum(1000.0)
    assert standing(drr, "a") == before
    served = serve(drr, 300)
    assert abs(served.count("a") - served.count("b")) <= 2 * 100 + 100


# ---- what admission asks


def test_the_share_is_the_weight_among_those_active_level_by_level():
    drr = house(classes=(ClassSpec("gold", 3.0), ClassSpec("tin", 1.0)))
    for tenant, weight, name in (("a", 2.0, "gold"), ("b", 1.0, "gold"), ("c", 1.0, "tin")):
        drr.configure(TenantSpec(tenant, NO_BOUNDS, weight=weight, class_name=name))
    pool = drr.pool("default")
    flows = {tenant: drr.flow(pool, drr.tenants[tenant]) for tenant in "abc"}
    assert pool.share(flows["a"]) == 1.0
    enqueue(drr, asking("b"))
    assert pool.share(flows["a"]) == pytest.approx(2 / 3)
    enqueue(drr, asking("c"))
    assert pool.share(flows["a"]) == pytest.approx(2 / 3 * 3 / 4)
    assert pool.share(flows["c"]) == pytest.approx(1 / 4)


def test_an_emptied_line_counts_as_active_for_a_moment():
    drr = house("ab")
    enqueue(drr, asking("a"), asking("b"))
    serve(drr, 2, now=5.0)
    pool = drr.pools["default"]
    pool.release_idle(5.0 + 0.9 * ACTIVE_FOR_S)
    assert (pool.active_flows, pool.active_weight) == (2, 1.0)
    pool.release_idle(5.0 + ACTIVE_FOR_S)
    assert (pool.active_flows, pool.active_weight) == (0, 0.0)


@pytest.mark.parametrize("weight", [1e-12, 1e12])
def test_nobody_is_active_when_all_have_gone_whatever_the_weights(weight: float):
    drr = house({"a": weight, "b": weight / 3, "c": 7 * weight})
    enqueue(drr, *(asking(tenant) for tenant in "abc"))
    pool = drr.pools["default"]
    pool.release_idle(100.0)
    assert pool.nodes["default"].active_weight > 0
    serve(drr, 3)
    pool.release_idle(100.0)
    assert pool.nodes["default"].active_weight == 0.0
    assert pool.active_weight == 0.0


def test_an_empty_flow_is_out_of_the_ring_at_once():
    drr = house("ab")
    enqueue(drr, asking("a"), asking("b"), asking("b"))
    serve(drr, 1)
    assert drr.tenants["a"].flows["default"].position is RingPosition.OUT
    assert repr(drr.tenants["b"].flows["default"]) == "<Flow b: 2+0 wait, deficit 10, new, weight 1>"


def test_a_pool_that_nobody_asked_for_serves_nobody():
    assert house("a").next(0.0, "nowhere") is None


@pytest.mark.parametrize(("quantum", "idle_tenants"), [(0.0, 1), (nan, 1), (1.0, 0)])
def test_a_scheduler_without_a_quantum_or_without_room_is_refused(quantum: float, idle_tenants: int):
    with pytest.raises(ValueError, match="above 0"):
        Drr(quantum=quantum, bounds=NO_BOUNDS, idle_tenants=idle_tenants)
