"""The whole mechanism in small virtual houses: what it promises, seen from outside."""

from __future__ import annotations

from random import Random

import pytest

from services.core.account import QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted, Rejection
from services.core.drr import FORGET_AFTER_S
from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.request import Request, Stage
from services.core.scheduler import Scheduler
from tests.core.house import PREFILL_S, ROOMY, TOKEN_S, House, settings

SERVICE_S = 50 * PREFILL_S + 20 * TOKEN_S
"""Of the usual request."""


def flood(house: House, tenant: str, times_capacity: float, until_s: float, **fields: float) -> None:
    """Offer so many times what the slots can serve."""
    house.every(SERVICE_S / (house.free * times_capacity), until_s, lambda: house.offer(tenant, **fields))


# ---- the promise


def test_under_three_times_its_capacity_the_house_stays_full_and_those_it_admits_are_served() -> None:
    house = House(slots=8)
    flood(house, "a", 3.0, 20.0)
    house.run(25.0)
    possible = 8 * 20.0 / SERVICE_S
    assert house.count(Outcome.SERVED) > 0.93 * possible
    assert house.count(Outcome.DEADLINE_EXCEEDED) < 0.01 * possible
    assert house.count(Outcome.DEADLINE_EXPIRED) < 0.03 * possible
    assert len(house.fates) == sum(isinstance(fate, Rejection) for fate in house.fates.values()) + len(house.admitted)


def test_a_light_tenant_beside_a_flood_is_served_as_if_it_were_alone() -> None:
    house = House(slots=8)
    flood(house, "heavy", 10.0, 20.0)
    house.run(1.0)  # until something is known of how long answers are
    house.every(0.3, 20.0, lambda: house.offer("light"))
    house.run(25.0)
    offered = sum(request.tenant == "light" for request in house.answers)
    assert offered > 30
    assert house.count(Outcome.SERVED, "light") == offered
    waits_s = sorted(wait_s for request, wait_s in house.waits_s.items() if request.tenant == "light")
    assert waits_s[len(waits_s) * 9 // 10] < SERVICE_S


def equal_tenants(count: int, times_capacity: float, *, measured_rounds: bool) -> House:
    """All together they ask for so many times the capacity of 16 slots, for 12 s."""
    house = House(slots=16, chosen=settings(measured_rounds=measured_rounds))
    gap_s = count * (100 * PREFILL_S + 7 * TOKEN_S) / (16 * times_capacity)

    def come(tenant: str) -> None:
        house.every(gap_s, 12.0, lambda: house.offer(tenant, prompt_tokens=100, answer=7, max_tokens=7))

    for tenant in range(count):
        come(str(tenant))
    house.run(16.0)
    return house


def test_three_hundred_equal_tenants_are_promised_what_they_get_because_rounds_are_measured() -> None:
    dropped = {}
    for measured in (True, False):
        house = equal_tenants(300, 3.0, measured_rounds=measured)
        dropped[measured] = house.count(Outcome.DEADLINE_EXPIRED) / len(house.admitted)
    assert dropped[True] <= 0.05
    assert dropped[False] > 2 * dropped[True]


def test_a_burst_is_served_as_far_as_its_deadline_allows() -> None:
    house = House(slots=4)
    house.warm("a")
    for _ in range(40):
        house.offer("a", slack_s=3.0)
    house.run(house.now + 5.0)
    fit = 4 * 0.8 * 3.0 / SERVICE_S  # within the margin
    assert house.count(Outcome.SERVED) - 25 > 0.75 * fit


def test_what_is_published_about_waits_is_covered() -> None:
    house = House(slots=8)
    flood(house, "a", 1.5, 60.0)
    flood(house, "b", 0.4, 60.0)
    house.run(65.0)
    class_stats = house.scheduler.pools["default"].classes["default"]
    share = class_stats.waits.in_turn.coverage.share(0.95)
    assert share is not None
    assert abs(share - 0.95) < 0.03


# ---- the start, and before


def test_at_the_start_it_is_looked_at_again_and_one_that_no_longer_fits_is_evicted() -> None:
    house = House(slots=1, chosen=settings(standing_queue=False))
    house.warm("a")
    house.fill("b", answer=100)
    request = house.request("a", slack_s=3.0)
    assert isinstance(house.put(request), Admitted)
    now = request.deadline - SERVICE_S / 2
    started, evicted = house.scheduler.next(now)  # nobody has looked at the clock for a while
    assert (started, evicted) == (None, [request])
    assert request.stage is Stage.ENDED


def test_an_eviction_at_the_start_costs_its_tenant_nothing() -> None:
    house = House(slots=1, chosen=settings(standing_queue=False))
    house.warm("a")
    charged = house.scheduler.drr.tenants["a"].charged
    house.fill("b", answer=100)
    request = house.request("a", slack_s=3.0)
    house.put(request)
    house.scheduler.next(request.deadline - 0.01)
    assert house.scheduler.drr.tenants["a"].charged == pytest.approx(charged)
    assert house.estimator.busy == 1


def test_what_expires_gives_its_place_back_at_once_and_teaches_how_long_it_waited() -> None:
    house = House(slots=1, chosen=settings(unconfigured=TenantSpec("", QueueBounds(1)), standing_queue=False))
    house.fill("b", answer=100)
    request = house.request("a", slack_s=8.0)
    assert isinstance(house.put(request), Admitted)
    assert isinstance(house.offer("a", slack_s=8.0), Rejection)
    flow = house.scheduler.drr.tenants["a"].flows["default"]
    waits = flow.stats.waits
    seen = [waits.of(new)._stale_in for new in (True, False)]
    assert house.scheduler.expire(request.expires_at - 1e-6) == []
    assert house.scheduler.expire(request.expires_at) == [request]
    assert [waits.of(new)._stale_in for new in (True, False)] != seen
    house.now = request.expires_at
    assert isinstance(house.offer("a", slack_s=8.0), Admitted)


def test_one_that_may_be_cut_is_cut_to_what_fits() -> None:
    house = House(slots=1)
    house.warm("a")
    house.fill("b", answer=100)
    house.run(house.now + 0.5)
    request = house.request("a", slack_s=1.0, answer=100, may_clamp=True)
    assert isinstance(house.put(request), Admitted)
    house.run(house.now + 2.0)
    assert 1 <= request.granted_tokens <= 50
    assert house.fates[request] is Outcome.SERVED


def test_with_the_clamp_switched_off_nobody_is_cut() -> None:
    house = House(slots=1, chosen=settings(clamp=False))
    house.warm("a")
    house.fill("b", answer=100)
    request = house.request("a", slack_s=20.0, answer=150, may_clamp=True)
    house.put(request)
    house.run(house.now + 20.0)
    assert request.granted_tokens == 200


def test_an_answer_that_was_cut_does_not_make_its_tenant_look_brief() -> None:
    house = House(slots=1)
    house.warm("a", answer=100, max_tokens=10)
    flow = house.scheduler.drr.tenants["a"].flows["default"]
    assert flow.stats.lengths.at(0.5, 500) > 10


def test_a_slot_does_not_wait_for_a_retrieval() -> None:
    house = House(slots=1)
    slow = house.request("a", slack_s=5.0, ready=False)
    assert isinstance(house.put(slow), Admitted)
    assert slow.stage is Stage.WAITING
    quick = house.request("b", slack_s=5.0)
    house.put(quick)
    assert quick.stage is Stage.RUNNING
    house.scheduler.ready(house.now, slow)
    house.run(house.now + 1.0)
    assert house.count(Outcome.SERVED) == 2


# ---- who is still here


def test_who_has_been_silent_for_a_second_no_longer_has_a_share() -> None:
    house = House(slots=1)
    for tenant in "abcd":
        house.offer(tenant, slack_s=100.0, answer=10)
    house.run(0.3)
    pool = house.scheduler.pools["default"].pool
    house.offer("e", slack_s=100.0)
    assert pool.active_flows == 5
    house.run(3.0)
    house.offer("e", slack_s=100.0, answer=100)
    house.offer("e", slack_s=100.0)
    assert pool.active_flows == 1
    assert pool.share(house.scheduler.drr.tenants["e"].flows["default"]) == 1.0


def test_strangers_are_forgotten_with_all_that_was_learned_of_them() -> None:
    house = House(slots=2, chosen=settings(idle_tenants=3))
    house.scheduler.configure(TenantSpec("known", ROOMY))
    house.warm("known", answers=1)
    for at in range(50):
        house.offer(f"stranger-{at}", answer=1)
        house.run(house.now + 1.0)
    tenants = house.scheduler.drr.tenants
    assert len(tenants) <= 1 + 3 + 1
    assert "known" in tenants
    house.run(house.now + FORGET_AFTER_S + 1.0)
    house.offer("another", answer=1)
    assert set(tenants) == {"known", "another"}
    assert tenants["known"].flows["default"].stats.service_s > 0
    house.offer("stranger-49", answer=1)
    assert tenants["stranger-49"].flows["default"].stats.service_s == 0.0


def test_one_that_still_runs_is_not_forgotten() -> None:
    house = House(slots=2, chosen=settings(idle_tenants=1))
    request = house.request("slow", slack_s=1000.0, answer=80_000, max_tokens=80_000)
    house.put(request)
    for at in range(10):
        house.offer(f"stranger-{at}", answer=1)
        house.run(house.now + 50.0)
    assert "slow" in house.scheduler.drr.tenants
    house.run(1000.0)
    assert house.fates[request] is Outcome.SERVED


# ---- what workers do


def test_a_lost_worker_shows_at_once_in_the_waits_that_are_predicted() -> None:
    house = House(slots=8, chosen=settings(standing_queue=False))
    house.fill("b", answer=20, waiting=40)
    before = house.offer("a", slack_s=100.0).predicted_wait_s
    house.scheduler.capacity(house.now, 4)
    next_slot_s = house.estimator.next_slot_s(house.now)
    after = house.offer("c", slack_s=100.0).predicted_wait_s
    assert after - next_slot_s > 1.9 * (before - next_slot_s)


def test_when_the_last_worker_is_lost_all_are_refused_and_when_one_is_back_they_are_not() -> None:
    house = House(slots=2)
    house.scheduler.capacity(1.0, 0)
    assert isinstance(house.scheduler.admit(1.0, house.request()), Rejection)
    house.scheduler.capacity(2.0, 1)
    assert isinstance(house.scheduler.admit(2.0, house.request(slack_s=5.0)), Admitted)


def test_pools_do_not_wait_for_each_other() -> None:
    house = House(slots=1, chosen=settings(standing_queue=False))
    house.fill("a", waiting=50)
    house.scheduler.announce("other", Estimator(work_per_slot_s=400.0))
    house.scheduler.capacity(0.0, 1, "other")
    request = house.request("a", pool="other")
    said = house.scheduler.admit(house.now, request)
    assert said == Admitted(0, 0.0)
    assert house.scheduler.next(house.now, "other") == (request, [])


def test_time_lost_to_failures_is_charged_by_what_was_read_and_written() -> None:
    house = House(slots=1)
    request = house.request("a", slack_s=10.0)
    house.scheduler.admit(0.0, request)
    assert house.scheduler.next(0.0)[0] is request
    house.scheduler.finish(0.1, request, Outcome.UPSTREAM_FAILED, 50, 3)
    assert house.scheduler.drr.tenants["a"].charged == 56.0
    assert house.estimator.busy == 0
    with pytest.raises(RuntimeError, match="does not run"):
        house.scheduler.finish(0.2, request, Outcome.SERVED, 50, 3)
    assert (house.estimator.busy, house.scheduler.second_finishes) == (0, 1)


# ---- those who come back


def test_most_of_a_refused_crowd_that_comes_back_when_it_was_told_to_is_admitted() -> None:
    house = House(slots=4)
    house.warm("a")
    told: list[Request] = []

    def again(request: Request) -> None:
        house.put(request)
        told.append(request)

    for _ in range(300):
        said = house.offer("a", slack_s=1.0)
        if isinstance(said, Rejection):
            assert said.retry_hint_s is not None
            house.at(house.now + said.retry_hint_s, lambda: again(house.request("a", slack_s=1.0)))
    house.run(house.now + 60.0)
    assert len(told) > 200
    assert sum(request in house.admitted for request in told) > 0.8 * len(told)


def test_what_workers_announce_counts_at_once_though_their_slots_were_known_before() -> None:
    scheduler = House(slots=4).scheduler
    scheduler.announce("default", Estimator(work_per_slot_s=1000.0))
    assert scheduler.pools["default"].estimator.rate == 4000.0


def test_strangers_of_a_class_that_is_not_there_are_refused_when_the_settings_are_made() -> None:
    with pytest.raises(ValueError, match="unconfigured tenants are of class gold, which is none of"):
        settings(unconfigured=TenantSpec("", QueueBounds(10), class_name="gold"))


def test_a_prompt_that_is_counted_while_it_waits_is_charged_as_what_it_is() -> None:
    house = House(slots=1)
    house.warm("a")
    house.offer("a")
    guessed = house.request("a", prompt_tokens=40, context_tokens=1500, ready=False, slack_s=60.0)
    assert isinstance(house.put(guessed), Admitted)
    before, line = guessed.charge_tokens, house.scheduler.drr.usage.cost_tokens
    house.scheduler.counted(house.now, guessed, 90)
    assert (guessed.prompt_tokens, guessed.context_tokens) == (90, 0)
    assert guessed.charge_tokens == pytest.approx(before - 1450)
    assert house.scheduler.drr.usage.cost_tokens == pytest.approx(line - 1450)
    house.scheduler.ready(house.now, guessed)
    house.run(house.now + 30.0)
    assert house.fates[guessed] is Outcome.SERVED
    assert house.scheduler.drr.usage.cost_tokens == 0


def test_a_start_is_charged_the_prompt_alone_while_lengths_are_a_guess_and_the_answer_at_its_end() -> None:
    house = House(1)
    request = house.request("a", prompt_tokens=50, answer=20)
    house.put(request)
    flow, weights = request.flow, house.scheduler.settings.weights
    assert request.charge_tokens > weights.cost(50, 0) == flow.unsettled == flow.tenant.charged
    house.run(10.0)
    assert house.fates[request] is Outcome.SERVED
    assert (flow.unsettled, flow.tenant.charged) == (0.0, weights.cost(50, 20))


def test_a_start_is_charged_the_expected_answer_once_lengths_are_known_and_the_difference_at_its_end() -> None:
    house = House(1)
    for _ in range(30):
        house.offer("a", prompt_tokens=50, answer=20)
        house.run(house.now + 1.0)
    before, weights = house.scheduler.drr.tenants["a"].charged, house.scheduler.settings.weights
    request = house.request("a", prompt_tokens=50, answer=30)
    house.put(request)
    assert request.flow.unsettled == pytest.approx(weights.cost(50, 20))
    house.run(house.now + 1.0)
    assert request.flow.tenant.charged - before == pytest.approx(weights.cost(50, 30))


def test_one_short_answer_does_not_shut_an_idle_house() -> None:
    """What is announced of reading knows no start: the first token of a tiny prompt takes a hundred times longer."""
    step_s = 0.024
    scheduler = Scheduler(settings(), Random(1).random)
    scheduler.announce("default", Estimator(work_per_slot_s=2 / step_s, prefill_s_per_token=1e-4, s_per_token=step_s))
    scheduler.capacity(0.0, 8)
    tiny = Request(1, "a", 0.0, 30.0, 2, 3, max_level=4, may_clamp=True)
    scheduler.admit(0.0, tiny)
    scheduler.next(0.0)
    scheduler.first_token(1.5 * step_s, tiny)
    scheduler.finish(3.5 * step_s, tiny, Outcome.SERVED, 2, 3)
    usual = Request(2, "a", 1.0, 2.5, 2, 50, max_level=4, may_clamp=True)
    assert isinstance(scheduler.admit(1.0, usual), Admitted)
    started, evicted = scheduler.next(1.0)
    assert (started, evicted) == (usual, [])
    assert usual.granted_tokens > 25


def test_who_wants_a_slot_at_once_is_told_to_come_back_when_one_is_expected() -> None:
    house = House(slots=2)
    house.warm("a")
    for _ in range(2):
        house.offer("a", answer=100, slack_s=60.0)
    refused = house.offer("b", start_by=house.now, slack_s=60.0)
    assert isinstance(refused, Rejection)
    assert refused.reason == "no_slot"
    assert refused.retry_hint_s is not None
    assert refused.retry_hint_s >= refused.predicted_wait_s > 0.05


def test_a_hint_for_a_slot_that_is_far_off_stays_within_its_bound() -> None:
    scheduler = Scheduler(settings(), Random(1).random)
    scheduler.announce("default", Estimator(work_per_slot_s=2.0, prefill_s_per_token=0.001, s_per_token=1.0))
    scheduler.capacity(0.0, 1)
    scheduler.admit(0.0, Request(1, "a", 0.0, 1000.0, 10, 200))
    scheduler.next(0.0)
    refused = scheduler.admit(0.0, Request(2, "b", 0.0, 1000.0, 10, 200, start_by=0.0))
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.retry_hint_s) == ("no_slot", 30.0)
    assert refused.predicted_wait_s > 60.0
