"""What a client may ask for beside its deadline: how long it would stand in line, and when its first token is due."""

from __future__ import annotations

from math import inf

import pytest

from services.core.admission import TURN_S
from services.core.admissioncheck import Admitted, Rejection
from services.core.outcome import Outcome
from services.core.request import Request, Stage
from tests.core.house import PREFILL_S, TOKEN_S, House, settings

READ_S = 50 * PREFILL_S
SERVICE_S = READ_S + 20 * TOKEN_S


def busy(waiting: int = 0, slots: int = 1) -> House:
    """A house whose slots are all taken for a second or so; it knows how long answers are."""
    house = House(slots=slots, chosen=settings(standing_queue=False))
    house.warm("a")
    house.fill("b", answer=100, waiting=waiting)
    return house


def refused(said: Admitted | Rejection) -> Rejection:
    assert isinstance(said, Rejection), said
    return said


# ---- patience


def test_one_that_would_not_wait_starts_at_once_where_a_slot_is_free() -> None:
    house = House(slots=1)
    request = house.request(start_by=house.now)
    assert isinstance(house.put(request), Admitted)
    assert request.stage is Stage.RUNNING


def test_one_that_would_not_wait_is_told_when_to_come_back_where_no_slot_is_free() -> None:
    house = busy()
    said = refused(house.offer(slack_s=1000.0, start_by=house.now))
    assert (said.outcome, said.reason) == (Outcome.YIELD, "no_slot")
    assert said.retry_hint_s is not None


def test_one_that_would_not_wait_yields_to_those_who_do_though_a_slot_is_free() -> None:
    house = House(slots=2)
    big = house.request("b", slack_s=1000.0)
    assert isinstance(house.scheduler.admit(house.now, big), Admitted)
    assert house.scheduler.next(house.now, fits=lambda request: False) == (None, [])
    said = refused(house.scheduler.admit(house.now, house.request(slack_s=1000.0, start_by=house.now)))
    assert said.reason == "no_slot"


def test_while_nothing_is_known_of_the_workers_no_guess_lets_one_in_that_would_not_wait() -> None:
    house = House(slots=1, knows_itself=False)
    house.fill("b", answer=100)
    assert house.estimator.rate is None
    assert refused(house.offer(slack_s=1000.0, start_by=house.now)).reason == "no_slot"
    assert isinstance(house.offer(slack_s=1000.0, start_by=house.now + 0.1), Admitted)


def test_a_wait_that_is_longer_than_the_clients_patience_is_refused_at_the_door() -> None:
    house = busy(waiting=3)
    wait_s = house.offer("c", slack_s=1000.0).predicted_wait_s
    assert wait_s > 0.5
    assert refused(house.offer("d", slack_s=1000.0, start_by=house.now + 0.9 * wait_s)).reason == "no_slot"
    assert isinstance(house.offer("e", slack_s=1000.0, start_by=house.now + 2 * wait_s), Admitted)


def test_patience_that_ends_in_line_is_told_from_a_deadline() -> None:
    house = busy()
    patient, hurried = (house.request("a", slack_s=1000.0, start_by=by) for by in (inf, house.now + 1.5))
    house.put(hurried)
    house.put(patient)
    house.scheduler.capacity(house.now, 0)
    house.free = -1  # the worker is lost, and nobody starts
    house.run(house.now + 1.5)
    assert hurried.stage is Stage.WAITING
    house.run(house.now + 2 * TURN_S)
    assert (hurried.stage, hurried.expires_for) == (Stage.ENDED, "patience")
    assert patient.stage is Stage.WAITING


def test_a_deadline_that_comes_before_the_patience_ends_is_the_reason() -> None:
    house = busy()
    request = house.request("a", slack_s=3.0, start_by=house.now + 30.0)
    house.put(request)
    assert request.expires_at < request.deadline
    assert house.scheduler.expire(request.expires_at) == [request]
    assert request.expires_for == "deadline"


def test_patience_is_not_tried_while_the_own_retrieval_runs() -> None:
    house = House(slots=1)
    request = house.request(slack_s=10.0, start_by=house.now, ready=False)
    assert isinstance(house.put(request), Admitted)
    house.run(1.0)
    assert request.stage is Stage.WAITING
    house.scheduler.ready(house.now, request)
    house.start()
    assert request.stage is Stage.RUNNING


def test_one_that_would_not_wait_yields_when_its_slot_was_taken_while_its_retrieval_ran() -> None:
    house = House(slots=1)
    request = house.request(slack_s=10.0, start_by=house.now, ready=False)
    house.put(request)
    house.fill("b", answer=100)
    house.run(0.3)
    house.scheduler.ready(house.now, request)
    assert house.scheduler.wakes_at() == house.now + TURN_S
    house.run(house.now + 2 * TURN_S)
    assert (request.stage, request.expires_for) == (Stage.ENDED, "patience")


def test_patience_is_no_reason_to_go_ahead() -> None:
    house = busy(slots=1)
    first, second = (house.request("a", slack_s=slack_s) for slack_s in (20.0, 30.0))
    second.start_by = house.now + 10.0
    house.put(first)
    house.put(second)
    house.run(house.now + 5.0)
    assert first.started_at < second.started_at


def test_the_slot_that_is_there_is_taken_though_the_patience_has_just_ended() -> None:
    house = House(slots=1)
    request = house.request(start_by=house.now)
    house.scheduler.admit(house.now, request)
    assert house.scheduler.expire(house.now) == []
    assert house.scheduler.next(house.now + 0.001) == (request, [])


# ---- the first token


def stream(house: House, ttft_s: float, **fields: object) -> Request:
    return house.request("a", slack_s=1000.0, first_token_by=house.now + ttft_s, **fields)


def test_wait_and_prefill_must_fit_into_a_share_of_the_time_to_the_first_token() -> None:
    house = busy()
    needed_s = (house.estimator.next_slot_s(house.now) + READ_S) / 0.8
    said = refused(house.put(stream(house, 0.99 * needed_s)))
    assert (said.outcome, said.reason) == (Outcome.DEADLINE_INFEASIBLE, "first_token")
    assert said.retry_hint_s is not None
    assert isinstance(house.put(stream(house, 1.01 * needed_s)), Admitted)


def test_how_long_a_stream_goes_on_does_not_matter_to_its_first_token() -> None:
    house = House(slots=1)
    house.warm("a", answer=180)
    assert isinstance(house.put(stream(house, 2 * READ_S, answer=180)), Admitted)
    house.run(house.now + 5.0)
    assert house.count(Outcome.SERVED, "a") == 26


def test_a_first_token_that_cannot_come_in_time_in_an_empty_house_is_too_long() -> None:
    house = House(slots=1)
    said = refused(house.put(stream(house, 0.99 * READ_S)))
    assert (said.outcome, said.reason, said.retry_hint_s) == (Outcome.DEADLINE_INFEASIBLE, "too_long", None)
    assert isinstance(house.put(stream(house, 1.01 * READ_S)), Admitted)


def test_less_context_is_tried_before_a_first_token_is_refused() -> None:
    house = House(slots=1)
    said = house.put(stream(house, 0.1, context_tokens=2000, max_level=4))
    assert isinstance(said, Admitted)
    assert said.level > 0


def test_a_missed_first_token_says_nothing_of_the_lengths_that_are_guessed() -> None:
    house = busy()
    for _ in range(20):
        refused(house.put(stream(house, 0.1)))
    assert house.scheduler.drr.tenants["a"].flows["default"].stats.estimate_rejects == 0


def test_what_is_due_first_goes_first_within_a_tenants_line() -> None:
    house = busy()
    whole, streamed = house.request("a", slack_s=20.0), stream(house, 10.0)
    house.put(whole)
    house.put(streamed)
    house.run(house.now + 5.0)
    assert streamed.started_at < whole.started_at


def test_a_stream_that_starts_too_late_for_its_first_token_starts_for_nobody() -> None:
    house = busy()
    request = stream(house, 5.0)
    house.put(request)
    now = request.first_token_by - 0.5 * READ_S
    assert house.scheduler.next(now) == (None, [request])
    assert request.expires_for == "first_token"


def test_a_stream_expires_when_its_first_token_can_come_in_time_no_more() -> None:
    house = busy()
    request = stream(house, 5.0)
    house.put(request)
    assert request.expires_at == pytest.approx(request.first_token_by - READ_S)
    assert house.scheduler.expire(request.expires_at) == [request]
    assert request.expires_for == "first_token"


# ---- a prompt that is counted


def test_a_prompt_that_is_longer_than_was_thought_must_start_sooner_and_a_shorter_one_may_start_later() -> None:
    house = busy()
    longer, shorter = house.request("a", slack_s=20.0), stream(house, 20.0)
    for request, counted in ((longer, 1050), (shorter, 10)):
        house.put(request)
        before = request.expires_at
        house.scheduler.counted(house.now, request, counted)
        assert request.expires_at == pytest.approx(before - (counted - 50) * PREFILL_S)
    assert house.scheduler.wakes_at() == min(longer.expires_at, shorter.expires_at)
    assert (longer.expires_for, shorter.expires_for) == ("deadline", "first_token")


def test_a_counted_prompt_gives_nobody_more_patience() -> None:
    house = busy()
    request = house.request("a", slack_s=20.0, start_by=house.now + 2.0)
    house.put(request)
    house.scheduler.counted(house.now, request, 10)
    assert (request.expires_at, request.expires_for) == (request.start_by + TURN_S, "patience")
    house.scheduler.counted(house.now, request, 199_900)
    assert request.expires_at < house.now + 0.1
    assert request.expires_for == "deadline"
