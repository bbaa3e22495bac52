"""Requests that set no limit of their answer: what they are planned with, and that no limit is put into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.admissioncheck import Admitted, Rejection
from services.core.cost import CONFIDENT_SAMPLES, FIRST_OPEN_TOKENS, Lengths
from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.request import UNLIMITED, Request
from services.core.scheduler import Scheduler
from tests.core.house import PREFILL_S, SERVICE_S, TOKEN_S, House, settings


def open_ended(house: House, tenant: str = "a", **fields: float | bool) -> Request:
    """A request without a limit, planned as the router does."""
    likely = house.scheduler.likely_tokens(tenant, "default")
    return house.request(tenant, max_tokens=likely, open_ended=True, **fields)  # type: ignore[arg-type]


def learned(house: House, *lengths: int) -> None:
    """Let tenant a have these answers, one after the other."""
    for length in lengths:
        house.put(open_ended(house, slack_s=1000.0, answer=length))
        house.run(house.now + 50.0)


def tabulated(house: House) -> Lengths:
    """The lengths of tenant a, up to the last answer."""
    lengths = house.scheduler.drr.tenants["a"].flows["default"].stats.lengths
    lengths._tabulate()
    return lengths


def test_a_request_without_a_limit_gets_none_and_runs_to_its_end() -> None:
    house = House(slots=1)
    request = open_ended(house, slack_s=60.0, answer=3000)
    assert isinstance(house.put(request), Admitted)
    assert (request.granted_tokens, request.planned_tokens) == (UNLIMITED, FIRST_OPEN_TOKENS)
    house.run(40.0)
    assert house.fates[request] is Outcome.SERVED


def test_what_is_planned_follows_the_answers() -> None:
    house = House(slots=1)
    learned(house, *[40] * CONFIDENT_SAMPLES)
    request = open_ended(house, answer=40)
    assert request.max_tokens == 40
    house.put(request)
    assert request.charge_tokens == pytest.approx(50 + 40 * house.scheduler.settings.weights.completion)
    other = open_ended(house, "b")
    assert other.max_tokens == 40, "a new tenant plans with the answers of its model"
    assert house.scheduler.likely_tokens("a", "another") == FIRST_OPEN_TOKENS


def test_an_answer_that_ran_to_its_own_end_is_no_cut_sample() -> None:
    house = House(slots=1)
    learned(house, *[40] * 30, *[90] * 3)
    lengths = tabulated(house)
    assert lengths.longest() == 90
    assert lengths.at(1.0, 10_000) == pytest.approx(90), "all of them have ended: the curve reaches 0"


def test_an_answer_that_may_be_cut_is_given_what_its_deadline_allows_only_if_the_longest_known_would_be_late() -> None:
    house = House(slots=1)
    learned(house, *[40] * 40, 200)
    tabulated(house)
    free = open_ended(house, slack_s=50 * PREFILL_S + 2.5, may_clamp=True, answer=40)
    assert isinstance(house.put(free), Admitted)
    assert (free.max_tokens, free.granted_tokens) == (40, UNLIMITED)
    house.run(house.now + 5.0)
    tight = open_ended(house, slack_s=50 * PREFILL_S + 1.0, may_clamp=True, answer=150)
    assert isinstance(house.put(tight), Admitted)
    assert 80 <= tight.granted_tokens <= 100, "more than is planned for, and in time"
    assert tight.planned_tokens == 40
    house.run(house.now + 5.0)
    assert house.fates[tight] is Outcome.SERVED


def test_a_deeper_level_sets_a_limit_to_a_share_of_what_is_likely() -> None:
    house = House(slots=1)
    learned(house, *[100] * CONFIDENT_SAMPLES)
    house.scheduler.hold_level(None, 4)
    request = open_ended(house, slack_s=60.0, answer=100, max_level=4)
    assert isinstance(house.put(request), Admitted)
    assert (request.level, request.granted_tokens) == (4, 30)
    house.run(house.now + 5.0)
    house.scheduler.hold_level(None, 1)
    whole = open_ended(house, slack_s=60.0, answer=100, max_level=4)
    house.put(whole)
    assert (whole.level, whole.granted_tokens) == (1, UNLIMITED), "level 1 cuts no answer"


def test_without_admission_a_request_without_a_limit_gets_none_either() -> None:
    scheduler = Scheduler(settings(policies=Policies.named("fifo")), lambda: 0.5)
    scheduler.announce("default", Estimator(work_per_slot_s=100.0, s_per_token=TOKEN_S))
    scheduler.capacity(0.0, 1)
    request = Request(1, "a", 0.0, 1.0, prompt_tokens=1, max_tokens=FIRST_OPEN_TOKENS, open_ended=True)
    assert isinstance(scheduler.admit(0.0, request, lambda _: True), Admitted)
    assert request.granted_tokens == UNLIMITED


@given(
    st.lists(st.integers(1, 400), min_size=CONFIDENT_SAMPLES, max_size=40), st.floats(0.05, 10.0), st.booleans(),
    st.integers(0, 4),
)  # fmt: skip
def test_a_limit_is_either_none_or_in_time_and_no_more_than_the_longest_known(
    lengths: list[int], slack_s: float, may_clamp: bool, level: int
) -> None:
    house = House(slots=1)
    learned(house, *lengths)
    house.scheduler.hold_level(None, level)
    request = open_ended(house, slack_s=slack_s, may_clamp=may_clamp, max_level=level, answer=10)
    if isinstance(house.put(request), Rejection):
        return
    granted = request.granted_tokens
    assert granted == UNLIMITED or 1 <= granted <= max(request.max_tokens, max(lengths))
    assert request.planned_tokens <= request.max_tokens
    if may_clamp and granted != UNLIMITED:
        assert request.started_at + 50 * PREFILL_S + granted * TOKEN_S <= request.deadline + 1e-9


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_a_flood_of_which_seven_in_ten_name_no_limit_keeps_the_slots_full_and_nobody_late(times: float) -> None:
    house = House(slots=8)

    def come() -> None:
        answer = 1 + int(house.random.expovariate(1 / 20))
        if house.random.random() < 0.7:
            house.put(open_ended(house, slack_s=2.0, answer=answer))
        else:
            house.offer(slack_s=2.0, answer=answer)

    house.every(SERVICE_S / (8 * times), 40.0, come)
    house.run(50.0)
    served = house.count(Outcome.SERVED)
    assert served >= 0.95 * 8 * 40.0 / SERVICE_S
    assert house.count(Outcome.DEADLINE_EXCEEDED) <= 0.02 * served
