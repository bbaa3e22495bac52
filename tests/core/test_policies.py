"""What each mechanism is worth: switched off the house collapses, switched on again it is cured within a deadline."""

from __future__ import annotations

import pytest

from services.core.account import QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted, Rejection
from services.core.choices import SchedulerSettings
from services.core.discipline import DrrDiscipline, FifoDiscipline
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.request import Stage
from services.core.scheduler import Scheduler
from tests.core.house import SERVICE_S, House, settings
from tests.core.looks import state
from tests.core.rig import asking, enqueue, house, serve
from tests.core.street import QUEUE, Street

DEADLINE_S = 1.0


def flood(street: Street, tenant: str, times_capacity: float, until_s: float, **fields: float) -> None:
    gap_s = SERVICE_S / (street.slots * times_capacity)
    street.every(gap_s, until_s, lambda: street.ask(tenant, slack_s=DEADLINE_S, **fields))


# ---- by name


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("weir", Policies()),
        ("fifo", Policies(False, False, False)),
        ("no-admission", Policies(admission=False)),
        (" no-cancellation , no-fairness ", Policies(fairness=False, cancellation=False)),
        ("no-admission,no-fairness,no-cancellation", Policies(False, False, False)),
    ],
)
def test_policies_have_names(text: str, policies: Policies) -> None:
    assert Policies.named(text) == policies
    assert Policies.named(str(policies)) == policies


@pytest.mark.parametrize("text", ["", "Weir", "weir,fifo", "weir,no-fairness", "no-queue", "no-admission,"])
def test_a_name_that_is_none_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="weir, fifo, or some of no-admission"):
        Policies.named(text)


# ---- admission


def test_without_admission_three_times_the_load_is_answered_too_late_and_with_it_nearly_all_of_capacity_is_of_use() -> (
    None
):
    with_it, without = Street(), Street(admission=False)
    for street in (with_it, without):
        flood(street, "a", 3.0, 20.0)
        street.run(25.0)
        assert street.is_empty()
    assert with_it.goodput(3.0, 20.0, SERVICE_S) > 0.9
    assert without.goodput(3.0, 20.0, SERVICE_S) < 1 / 3


def test_admission_that_comes_back_cures_the_house_within_a_deadline() -> None:
    street = Street(admission=False, cancellation=False, fairness=False)
    flood(street, "a", 3.0, 30.0)
    street.run(15.0)
    assert street.goodput(3.0, 15.0, SERVICE_S) < 1 / 3
    street.switch()
    street.run(15.0 + DEADLINE_S)
    street.run(35.0)
    assert street.goodput(15.0 + DEADLINE_S, 30.0, SERVICE_S) > 0.9
    assert street.is_empty()


def test_without_admission_only_the_platforms_bound_keeps_a_tenant_out() -> None:
    chosen = settings(
        bounds=QueueBounds(20), unconfigured=TenantSpec("", QueueBounds(5)), policies=Policies(admission=False)
    )
    house = House(slots=1, chosen=chosen)
    said = [house.offer(slack_s=0.001, max_level=4, may_clamp=True) for _ in range(30)]
    refused = [each for each in said if isinstance(each, Rejection)]
    assert len(refused) == 30 - 20 - 1
    assert {(each.outcome, each.reason) for each in refused} == {(Outcome.YIELD, "platform_requests")}
    assert house.scheduler.wakes_at() == float("inf"), "nobody expires"
    assert {each.level for each in said if isinstance(each, Admitted)} == {0}


def test_one_that_only_its_tenants_own_bound_would_never_hold_may_come_back_without_admission() -> None:
    chosen = settings(bounds=QueueBounds(1), unconfigured=TenantSpec("", QueueBounds(5, bytes=10)))
    for policies, comes_back in ((Policies(), False), (Policies(admission=False), True)):
        house = House(slots=1, chosen=chosen)
        house.scheduler.switch(0.0, policies)
        house.fill(waiting=1)
        said = house.offer(bytes=50, slack_s=1000.0)
        assert isinstance(said, Rejection)
        assert (said.retry_hint_s is not None) == comes_back


def test_without_admission_nobody_is_cut_however_late_it_starts() -> None:
    house = House(slots=1, chosen=settings(policies=Policies(admission=False)))
    house.fill()
    late = house.request(slack_s=0.1, may_clamp=True, max_level=4)
    house.put(late)
    house.now = 5.0
    house.scheduler.finish(5.0, next(iter(house.admitted)), Outcome.SERVED, 50, 100)
    assert house.scheduler.next(5.0) == (late, [])
    assert late.granted_tokens == late.max_tokens


def test_a_client_that_would_not_wait_is_believed_without_admission_too() -> None:
    house = House(slots=1, chosen=settings(policies=Policies(admission=False)))
    now_or_never = house.request()
    now_or_never.start_by = 0.0
    assert isinstance(house.put(now_or_never), Admitted), "a slot is free"
    another = house.request()
    another.start_by = 0.0
    said = house.put(another)
    assert isinstance(said, Rejection)
    assert said.reason == "no_slot"
    patient = house.request(slack_s=100.0)
    patient.start_by = 0.05
    assert isinstance(house.put(patient), Admitted)
    house.run(0.1)
    assert (patient.stage, patient.expires_for) == (Stage.ENDED, "patience")


def test_those_who_came_in_unjudged_are_judged_when_admission_comes_back() -> None:
    house = House(slots=1, chosen=settings(policies=Policies(admission=False)))
    house.fill()
    hopeless, patient = house.request(slack_s=0.5), house.request(slack_s=1000.0)
    for request in (hopeless, patient):
        assert isinstance(house.put(request), Admitted)
    house.now = 0.6
    house.scheduler.switch(house.now, Policies())
    assert house.scheduler.expire(house.now) == [hopeless]
    assert patient.stage is Stage.WAITING


def test_those_who_were_judged_wait_on_without_admission() -> None:
    house = House(slots=1)
    house.fill(answer=10)
    judged = house.request(slack_s=10.0)
    assert isinstance(house.put(judged), Admitted)
    assert house.scheduler.wakes_at() < 10.0
    house.scheduler.switch(0.0, Policies(admission=False))
    assert house.scheduler.wakes_at() == float("inf")
    assert house.scheduler.expire(20.0) == []


def test_waits_that_nobody_judged_teach_nothing() -> None:
    street = Street(admission=False, cancellation=False)
    flood(street, "a", 3.0, 10.0)
    street.run(10.0)
    covered = street.scheduler.pools["default"].classes["default"].waits.in_turn.coverage
    assert covered.total == 0
    street.switch()
    flood(street, "a", 3.0, 20.0)
    street.run(20.0)
    assert covered.total > 100


def test_no_level_holds_while_admission_is_off() -> None:
    house = House(slots=1, chosen=settings(policies=Policies(admission=False)))
    house.scheduler.hold_level(None, 3)
    request = house.request(max_level=4)
    house.put(request)
    assert request.level == 0
    (pool,) = state(house.scheduler, 0.0)["pools"]
    assert pool["classes"][0]["level"] == 0
    house.scheduler.switch(0.0, Policies())
    request = house.request(max_level=4, slack_s=100.0)
    house.put(request)
    assert request.level == 3


# ---- fairness


def beside_a_heavy_one(**off: bool) -> Street:
    """The light one is known: it has asked before."""
    street = Street(**off)
    street.every(0.3, 30.0, lambda: street.ask("light", slack_s=DEADLINE_S))
    street.run(10.0)
    flood(street, "heavy", 10.0, 30.0)
    street.run(40.0)
    assert street.is_empty()
    return street


def test_in_one_line_for_all_a_heavy_tenant_starves_a_light_one_and_in_turns_it_does_not() -> None:
    in_turns, in_line = beside_a_heavy_one(), beside_a_heavy_one(fairness=False)
    assert in_turns.share("light", since_s=11.0) > 0.97
    assert in_line.share("light", since_s=11.0) < 0.4
    assert in_line.goodput(12.0, 30.0, SERVICE_S) > 0.85, "what is admitted is in time, whoever it is"


def test_in_one_line_for_all_everybody_is_still_judged_with_caution() -> None:
    """Whose answers vary may be late; judged by the median, a sixth of the admitted would be."""
    street = Street(fairness=False)

    def come() -> None:
        answer = max(1, min(200, int(street.random.expovariate(1 / 20))))
        street.ask("a", slack_s=DEADLINE_S, answer=answer)

    street.every(SERVICE_S / (3 * street.slots), 30.0, come)
    street.run(35.0)
    told = [told for request, told in street.told.items() if request.arrived_at > 5.0]
    assert told.count(Outcome.DEADLINE_EXCEEDED) < 0.06 * told.count(Outcome.SERVED)


def test_without_any_mechanism_a_light_tenant_gets_next_to_nothing() -> None:
    plain = beside_a_heavy_one(admission=False, fairness=False, cancellation=False)
    assert plain.share("light", since_s=12.0) < 0.1


def test_turns_that_come_back_begin_anew_and_starve_nobody_for_what_was_served_before() -> None:
    """Charged as debt, what the order of arrival gave the heavy one would lock it out for minutes."""
    street = Street(fairness=False)
    flood(street, "heavy", 3.0, 40.0)
    street.run(20.0)
    street.every(SERVICE_S / street.slots, 40.0, lambda: street.ask("other", slack_s=DEADLINE_S))
    street.switch()
    street.run(21.0)
    before = [request for request, told in street.told.items() if told is Outcome.SERVED]
    street.run(26.0)
    served = [
        request.tenant for request, told in street.told.items() if told is Outcome.SERVED and request not in before
    ]
    assert 0.35 < served.count("heavy") / len(served) < 0.65
    flow = street.scheduler.drr.tenants["heavy"].flows["default"]
    assert flow.node.flows.deficit_at(street.now, flow) > -20 * flow.node.flows.quantum


def test_what_waits_starts_in_the_order_of_arrival_once_turns_have_ended() -> None:
    drr = house("ab", quantum=10.0)
    enqueue(drr, *(asking(tenant) for tenant in "aabaab"))
    drr.serve_by(0.0, FifoDiscipline)
    assert serve(drr, 6) == "aabaab"


def test_nobody_owes_in_turns_what_it_got_by_the_order_of_arrival() -> None:
    drr = house("ab", quantum=10.0)
    drr.serve_by(0.0, FifoDiscipline)
    enqueue(drr, *(asking("a") for _ in range(60)))
    assert serve(drr, 40) == "a" * 40
    enqueue(drr, *(asking("b") for _ in range(10)))
    drr.serve_by(0.0, DrrDiscipline)
    assert serve(drr, 8) == "abababab"


def test_in_one_line_nobody_is_told_of_debt() -> None:
    street = Street(fairness=False)
    flood(street, "heavy", 3.0, 5.0)
    street.run(5.0)
    lines = [line for tenant in state(street.scheduler, street.now)["tenants"] for line in tenant["lines"]]
    assert {(line["deficit_tokens"], line["debt_tokens"]) for line in lines} == {(0.0, 0.0)}
    assert state(street.scheduler, street.now)["policies"] == {
        "admission": True,
        "fairness": False,
        "cancellation": True,
    }


# ---- cancellation


def impatient(**off: bool) -> Street:
    """Half of the clients leave when a fifth of their answer is there."""
    street = Street(**off)
    gap_s = SERVICE_S / street.slots
    street.every(1.5 * gap_s, 20.0, lambda: street.ask("a", slack_s=DEADLINE_S))
    street.every(1.5 * gap_s, 20.0, lambda: street.ask("a", slack_s=DEADLINE_S, leaves_after_s=0.04))
    street.run(25.0)
    assert street.is_empty()
    return street


def test_without_cancellation_slots_work_for_clients_that_have_left() -> None:
    with_it, without = impatient(), impatient(cancellation=False)
    assert with_it.wasted_s / with_it.used_s < 0.2
    assert without.wasted_s / without.used_s > 0.4
    assert len(without.served_at) < 0.85 * len(with_it.served_at)


def test_a_plain_bounded_queue_does_nearly_all_of_its_work_for_nobody() -> None:
    street = Street(admission=False, fairness=False, cancellation=False)
    flood(street, "a", 3.0, 20.0)
    street.run(20.0)
    assert street.wasted_s / street.used_s > 0.8
    assert street.scheduler.drr.usage.requests > 0.9 * QUEUE
    street.switch()
    assert street.scheduler.drr.usage.requests < QUEUE / 2, "who waited for nobody has left"
    street.run(40.0)
    assert street.is_empty()


# ---- and from the start


def test_a_house_may_begin_with_any_of_them_off() -> None:
    scheduler = Scheduler(SchedulerSettings(policies=Policies.named("no-fairness")), lambda: 0.5)
    assert isinstance(scheduler.drr.pool("default").discipline, FifoDiscipline)
    scheduler.switch(1.0, Policies())
    assert isinstance(scheduler.drr.pool("default").discipline, DrrDiscipline)
    assert isinstance(scheduler.drr.pool("another").discipline, DrrDiscipline)
