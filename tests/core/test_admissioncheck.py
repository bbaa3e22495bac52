"""At the door: who comes in, at which level, who is told what, and who may never be refused on a guess."""

from __future__ import annotations

import pytest

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted, Rejection
from services.core.outcome import Outcome
from services.core.request import Stage
from tests.core.house import PREFILL_S, ROOMY, TOKEN_S, House, settings


def refused(said: Admitted | Rejection) -> Rejection:
    assert isinstance(said, Rejection), said
    return said


def admitted(said: Admitted | Rejection) -> Admitted:
    assert isinstance(said, Admitted), said
    return said


# ---- an empty house


def test_without_a_worker_all_are_refused_and_told_to_come_back_late() -> None:
    house = House(slots=0)
    said = refused(house.offer())
    assert (said.outcome, said.reason, said.scope) == (Outcome.NO_CAPACITY, "no_worker", "platform")
    assert said.retry_hint_s is not None
    assert 25 <= said.retry_hint_s <= 30


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("may_clamp", [False, True])
def test_while_a_slot_is_free_nobody_is_refused_on_a_guess(known: bool, may_clamp: bool) -> None:
    house = House(slots=2)
    if known:  # that its answers take 2 s
        house.warm(answer=200)
    admitted(house.offer(slack_s=0.5, answer=10, max_tokens=200, may_clamp=may_clamp))
    house.run(house.now + 1.0)
    assert house.count(Outcome.SERVED) == (26 if known else 1)


def test_a_guess_does_not_take_out_whom_no_guess_could_keep_out() -> None:
    house = House(slots=2)
    house.warm(answer=200)
    request = house.request(slack_s=0.5, answer=10, ready=False)
    admitted(house.put(request))
    house.run(house.now + 0.1)
    house.scheduler.ready(house.now, request)
    house.start()
    assert request.stage is Stage.RUNNING


def test_in_an_empty_house_only_what_certainly_comes_too_late_is_refused() -> None:
    house = House(slots=2)
    read_s = 50 * PREFILL_S
    admitted(house.offer(slack_s=read_s * 1.01))
    said = refused(house.offer(slack_s=read_s * 0.99))
    assert (said.outcome, said.reason, said.retry_hint_s) == (Outcome.DEADLINE_INFEASIBLE, "too_long", None)
    assert refused(house.offer(slack_s=0.0)).retry_hint_s is None
    assert refused(house.offer(slack_s=-5.0)).retry_hint_s is None


# ---- a full house


def test_wait_and_service_must_fit_into_a_share_of_the_slack() -> None:
    house = House(slots=1)
    house.warm(answer=20)
    house.fill(answer=100)
    wait_s, service_s = house.estimator.next_slot_s(house.now), 50 * PREFILL_S + 20 * TOKEN_S
    needed_s = (wait_s + service_s) / 0.8
    said = refused(house.offer(slack_s=needed_s * 0.99))
    assert (said.outcome, said.reason) == (Outcome.DEADLINE_INFEASIBLE, "deadline")
    assert said.predicted_wait_s == pytest.approx(wait_s)
    assert said.retry_hint_s is not None
    assert admitted(house.offer(slack_s=needed_s * 1.01)).predicted_wait_s == pytest.approx(wait_s)


def test_a_retry_that_cannot_fit_gets_no_hint() -> None:
    house = House(slots=1)
    house.warm(answer=100)
    house.fill()
    said = refused(house.offer(slack_s=0.5))
    assert (said.reason, said.retry_hint_s) == ("too_long", None)


def test_what_is_larger_than_a_bound_will_never_fit_and_gets_no_hint() -> None:
    small = TenantSpec("", QueueBounds(10, cost_tokens=1000, bytes=1000))
    house = House(chosen=settings(unconfigured=small))
    house.fill(waiting=0)
    for fields in ({"bytes": 1001}, {"prompt_tokens": 1001}):
        said = refused(house.offer(slack_s=100.0, **fields))
        assert said.outcome is Outcome.TENANT_QUEUE_FULL
        assert said.retry_hint_s is None
    house = House(chosen=settings(bounds=QueueBounds(10, cost_tokens=1000, bytes=1000)))
    house.fill(waiting=0)
    said = refused(house.offer(slack_s=100.0, bytes=1001))
    assert (said.outcome, said.reason, said.retry_hint_s) == (Outcome.YIELD, "platform_bytes", None)


def test_a_full_queue_says_whose_it_is_and_when_to_come_back() -> None:
    house = House(
        slots=1,
        chosen=settings(bounds=QueueBounds(6), unconfigured=TenantSpec("", QueueBounds(4)), standing_queue=False),
    )
    house.fill("a", waiting=4)
    said = refused(house.offer("a", slack_s=1000.0))
    assert (said.outcome, said.reason, said.scope) == (Outcome.TENANT_QUEUE_FULL, "tenant_requests", "tenant")
    assert said.retry_hint_s is not None
    for _ in range(2):
        admitted(house.offer("b", slack_s=1000.0))
    said = refused(house.offer("c", slack_s=1000.0))
    assert (said.outcome, said.reason, said.scope) == (Outcome.YIELD, "platform_requests", "platform")
    assert said.retry_hint_s is not None


def test_a_refusal_changes_nothing() -> None:
    house = House(slots=1)
    house.warm(answer=100)
    house.fill()
    before = repr(house.scheduler)
    request = house.request(slack_s=0.5)
    refused(house.put(request))
    assert request.stage is Stage.NEW
    assert repr(house.scheduler) == before


def test_what_waits_with_an_earlier_deadline_is_waited_for_and_the_rest_is_not() -> None:
    house = House(slots=1, chosen=settings(standing_queue=False))
    house.fill("a", waiting=10)
    early = house.offer("a", slack_s=500.0)
    late = house.offer("a", slack_s=2000.0)
    assert admitted(early).predicted_wait_s < admitted(late).predicted_wait_s


# ---- retrieval


def test_retrieval_counts_for_those_who_have_not_done_it() -> None:
    house = House(slots=1)
    for _ in range(30):
        request = house.request("r", slack_s=10.0, answer=2, ready=False)
        admitted(house.put(request))
        house.run(house.now + 0.6)
        house.scheduler.ready(house.now, request)
        house.start()
        house.run(house.now + 1.0)
    house.fill(answer=1)
    needed_s = (0.6 + 50 * PREFILL_S + 2 * TOKEN_S) / 0.8
    assert refused(house.offer("r", slack_s=needed_s * 0.97, ready=False)).outcome is Outcome.DEADLINE_INFEASIBLE
    admitted(house.offer("r", slack_s=needed_s * 1.03, ready=False))
    admitted(house.offer("r", slack_s=needed_s * 0.97, ready=True))


def test_the_time_of_retrieval_is_not_taken_for_an_error_of_the_predicted_wait() -> None:
    house = House(slots=2)
    for _ in range(60):
        request = house.request("r", slack_s=10.0, answer=2, ready=False)
        admitted(house.put(request))
        house.run(house.now + 0.6)
        house.scheduler.ready(house.now, request)
        house.start()
        house.run(house.now + 1.0)
    request = house.request("r", slack_s=10.0, answer=2, ready=True)
    admitted(house.put(request))
    assert house.scheduler.forecast(request)[-1] < 0.1


# ---- degradation


def test_degradation_is_tried_before_the_deadline_refuses() -> None:
    house = House(slots=1)
    house.warm(answer=60)
    house.fill(answer=20)
    slack_s = (house.estimator.next_slot_s(house.now) + 2800 * PREFILL_S + 60 * TOKEN_S) / 0.8
    said = refused(house.offer(slack_s=slack_s, context_tokens=5000, answer=60))
    assert said.outcome is Outcome.DEADLINE_INFEASIBLE
    request = house.request(slack_s=slack_s, context_tokens=5000, answer=60, max_level=4)
    assert admitted(house.put(request)).level == 2  # the first whose context is short enough
    assert request.level == 2
    assert refused(house.offer(slack_s=0.1, context_tokens=5000, max_level=4)).outcome is Outcome.DEADLINE_INFEASIBLE


def test_no_level_is_deeper_than_the_tenant_allows_or_the_ladder_goes() -> None:
    house = House(slots=1)
    house.warm(answer=60)
    house.fill(answer=20)
    for max_level in (1, 2, 4, 99):
        for slack_s in (0.3, 0.5, 0.7, 0.9, 1.1, 1.5):
            said = house.offer(slack_s=slack_s, context_tokens=5000, max_level=max_level)
            assert isinstance(said, Rejection) or said.level <= min(max_level, 4)


def test_with_degradation_switched_off_everyone_gets_all_or_nothing() -> None:
    house = House(slots=1, chosen=settings(degrade=False))
    house.warm(answer=60)
    house.fill(answer=20)
    refused(house.offer(slack_s=1.8, context_tokens=5000, max_level=4))
    assert admitted(house.offer(slack_s=9.0, context_tokens=5000, max_level=4)).level == 0


def test_a_degraded_request_is_granted_what_its_level_allows() -> None:
    house = House(slots=1)
    house.warm(answer=60)
    house.fill(answer=20)
    slack_s = (house.estimator.next_slot_s(house.now) + 60 * PREFILL_S + 30 * TOKEN_S) / 0.8
    request = house.request(slack_s=slack_s, context_tokens=5000, answer=60, max_tokens=100, max_level=4)
    assert admitted(house.put(request)).level == 4
    house.run(house.now + 1.0)
    assert request.granted_tokens == 30


# ---- caution and its limits


def overcautious(house: House, tenant: str) -> None:
    """Teach that this tenant waits much longer than predicted, and that its answers vary."""
    flow = house.scheduler.drr.tenants[tenant].flows["default"]
    tenant_stats = flow.stats
    for new in (True, False):
        for _ in range(50):
            tenant_stats.waits.of(new).learn(0.1, 3.0)


def test_a_light_tenant_is_not_refused_by_caution_and_a_heavy_one_is() -> None:
    house = House(slots=1)
    house.warm("a", answer=20)
    overcautious(house, "a")
    house.fill(answer=20)
    wait_s = house.estimator.next_slot_s(house.now)
    slack_s = (wait_s + 20 * TOKEN_S + 50 * PREFILL_S) / 0.8 + 0.05
    request = house.request("a", slack_s=slack_s)
    admitted(house.put(request))
    house.scheduler.leave(house.now, request)
    for _ in range(40):  # it asks for more than there is
        request = house.request("a", slack_s=100.0)
        if isinstance(house.put(request), Admitted):
            house.scheduler.leave(house.now, request)
    assert refused(house.offer("a", slack_s=slack_s)).reason == "deadline"


def test_a_light_tenant_is_judged_by_its_median_and_one_with_its_share_by_its_long_answers() -> None:
    house = House(slots=1)
    for at in range(60):
        house.offer("a", slack_s=100.0, answer=100 if at % 5 == 0 else 10)
        house.run(house.now + 20.0)
    house.fill(answer=20)
    slack_s = (house.estimator.next_slot_s(house.now) + 10 * TOKEN_S + 50 * PREFILL_S) / 0.8 + 0.3
    request = house.request("a", slack_s=slack_s)
    admitted(house.put(request))
    house.scheduler.leave(house.now, request)
    for _ in range(60):  # from now on it asks for more than its share
        request = house.request("a", slack_s=100.0)
        if isinstance(house.put(request), Admitted):
            house.scheduler.leave(house.now, request)
    request = house.request("a", slack_s=slack_s)
    admitted(house.put(request))  # which it does not get
    house.scheduler.leave(house.now, request)
    tenant_stats = house.scheduler.drr.tenants["a"].flows["default"].stats
    tenant_stats.got.add(house.now, 1e6)
    refused(house.offer("a", slack_s=slack_s))


def test_a_light_tenant_is_not_refused_by_its_standing_queue_and_a_heavy_one_is() -> None:
    house = House(slots=1)
    house.warm("a", answer=20)
    house.fill(answer=20)
    admitted(house.offer("a", slack_s=100.0))
    flow = house.scheduler.drr.tenants["a"].flows["default"]
    flow.stats.codel.limit_s = 0.01
    admitted(house.offer("a", slack_s=100.0))
    for _ in range(40):
        said = house.offer("a", slack_s=100.0)
    assert (refused(said).outcome, refused(said).reason) == (Outcome.YIELD, "standing_queue")


def test_one_whose_own_line_is_empty_is_not_refused_by_a_standing_queue() -> None:
    house = House(slots=1)
    house.warm("a", answer=20)
    house.fill(answer=20, waiting=5)
    flow = house.scheduler.drr.tenants["a"].flows["default"]
    tenant_stats = flow.stats
    tenant_stats.codel.limit_s = 0.0001
    for _ in range(100):
        tenant_stats.asked.add(house.now, 1000.0)  # heavy
    admitted(house.offer("a", slack_s=100.0))
    assert refused(house.offer("a", slack_s=100.0)).reason == "standing_queue"


def test_a_line_of_its_own_is_not_charged_to_its_neighbour() -> None:
    house = House(slots=1, chosen=settings(classes=(ClassSpec("default"),)))
    house.fill("heavy", answer=20, waiting=100)
    house.run(house.now + 5.0)  # the heavy one is no longer new
    light = admitted(house.offer("light", slack_s=3.0))
    assert light.predicted_wait_s < 0.2 * admitted(house.offer("heavy", slack_s=1000.0)).predicted_wait_s


# ---- tenants of whom little is known


def test_a_cold_tenant_cannot_be_locked_out_by_the_lengths_of_its_neighbours() -> None:
    house = House(slots=2)
    house.warm("long", answer=1000, max_tokens=2000)  # ten seconds each, all of them
    for _ in range(25):
        admitted(house.offer("short", slack_s=1.0, answer=10, max_tokens=2000))
        house.run(house.now + 2.0)
    assert house.count(Outcome.SERVED, "short") == 25


def test_a_cold_tenant_is_not_locked_out_of_a_full_house_either() -> None:
    house = House(slots=2)
    house.warm("long", answer=1000, max_tokens=2000)
    served = 0
    for _ in range(25):
        house.offer("medium", slack_s=100.0, answer=40, max_tokens=40)
        house.offer("medium", slack_s=100.0, answer=40, max_tokens=40)
        said = house.offer("short", slack_s=1.0, answer=10, max_tokens=2000)
        assert isinstance(said, Admitted)
        house.run(house.now + 5.0)
        served = house.count(Outcome.SERVED, "short")
    assert served == 25


def test_a_tenant_whose_answers_have_become_short_is_let_in_again_while_the_pool_stays_full() -> None:
    """Its lengths can only be learned anew from its own answers, and by the old ones none of its requests fits."""
    house = House(slots=4)
    house.warm("a", answer=180)
    begins_at = house.now
    house.every(0.15, begins_at + 400, lambda: house.offer("filler", slack_s=3.0, answer=100))
    house.run(begins_at + 10)
    said: list[Admitted | Rejection] = []
    house.every(0.5, begins_at + 390, lambda: said.append(house.offer("a", slack_s=1.5, answer=10)))
    house.run(begins_at + 400)
    first, last = said[: len(said) // 4], said[-len(said) // 4 :]
    assert sum(isinstance(each, Rejection) for each in first) > 0.8 * len(first)
    assert sum(isinstance(each, Admitted) for each in last) > 0.8 * len(last)


def test_a_cold_tenant_still_waits_like_everyone() -> None:
    house = House(slots=1)
    house.fill("b", answer=100)
    said = refused(house.offer("cold", slack_s=0.2))
    assert (said.reason, said.outcome) == ("deadline", Outcome.DEADLINE_INFEASIBLE)
    assert said.retry_hint_s is not None


# ---- hints


def test_hints_of_a_refused_crowd_are_spread_over_what_the_house_can_do() -> None:
    house = House(slots=1)
    for at in range(30):
        house.warm(f"t{at}", answers=1)
    house.fill(answer=100)
    hints = []
    for at in range(30):
        said = refused(house.offer(f"t{at}", slack_s=0.25))
        assert said.retry_hint_s is not None
        assert 0.05 <= said.retry_hint_s <= 30
        hints.append(said.retry_hint_s)
    assert max(hints) > 20 * min(hints)
    in_three_seconds = sum(hint <= 3.0 for hint in hints)
    assert in_three_seconds <= 3.0 / (50 * PREFILL_S + 20 * TOKEN_S)  # no more than it can serve
    assert len({round(hint, 3) for hint in hints}) == len(hints)


def test_a_tenant_with_a_line_of_its_own_is_told_to_wait_for_that_line() -> None:
    house = House(slots=1, chosen=settings(unconfigured=TenantSpec("", QueueBounds(20)), standing_queue=False))
    house.fill("a", answer=20, waiting=20)
    house.offer("b", slack_s=1000.0)
    own = refused(house.offer("a", slack_s=1000.0))
    assert own.scope == "tenant"
    assert own.retry_hint_s is not None
    assert own.retry_hint_s > 2 * 20 * 0.2  # its line drains at half of what it may promise


def test_roomy_bounds_are_what_these_tests_say() -> None:
    assert House().scheduler.settings.bounds is ROOMY
