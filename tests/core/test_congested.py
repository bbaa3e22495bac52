"""A free slot is no promise that reading begins: prompts that are read one after another, and slots that are many."""

from __future__ import annotations

import pytest

from services.core.admissioncheck import CONGESTED, Admitted, Rejection
from services.core.outcome import Outcome
from tests.core.reading_room import ANSWER, PROMPT, READ_ONE_S, SERVICE_S, ReadingRoom


def lasting(seconds: float, load: float, **kind: bool) -> ReadingRoom:
    room = ReadingRoom(**kind)  # type: ignore[arg-type]
    room.asked_for(seconds, load)
    room.run(seconds + 5.0)
    return room


@pytest.mark.parametrize("told", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("announces", [True, False], ids=["announced", "learned"])
@pytest.mark.parametrize("load", [1.3, 2.0, 6.0])
def test_prompts_that_wait_for_a_reader_do_not_take_each_other_with_them(
    load: float, announces: bool, told: bool
) -> None:
    room = lasting(60.0, load, announces=announces, told=told)
    assert room.on_time_of_capacity(60.0) >= 0.8
    assert room.count(Outcome.DEADLINE_EXCEEDED) <= 0.1 * room.count(Outcome.SERVED)


def test_below_capacity_hardly_anybody_is_refused_for_what_is_read_before_it() -> None:
    room = lasting(60.0, 0.5)
    assert room.count(Outcome.SERVED) >= 0.97 * len(room.fates)


def test_after_a_burst_that_nobody_could_have_read_the_house_is_as_before() -> None:
    room = ReadingRoom()
    room.asked_for(4.0, 10.0)
    room.run(10.0)
    estimator = room.estimator
    assert (estimator.busy, estimator.unread_tokens, room.scheduler.pools["default"].pool.unread_tokens) == (0, 0, 0)
    before = room.count(Outcome.SERVED)
    for _ in range(20):
        assert isinstance(room.ask(), Admitted)
        room.run(room.now + 2 * SERVICE_S)
    assert room.count(Outcome.SERVED) == before + 20


def test_beside_one_who_asks_for_ten_times_the_capacity_the_others_are_still_read() -> None:
    room = ReadingRoom(announces=True)
    room.asked_for(60.0, 10.0, "heavy", slack_s=3.0)
    room.asked_for(60.0, 0.2, "light", slack_s=3.0)
    room.run(65.0)
    asked = sum(request.tenant == "light" for request in room.fates)
    assert room.count(Outcome.SERVED, "light") >= 0.8 * asked
    assert room.on_time_of_capacity(60.0) >= 0.8


def crowd(room: ReadingRoom, prompts: int, tenant: str = "filler") -> None:
    """So many stand before the readers, in slots."""
    for _ in range(prompts):
        assert isinstance(room.ask(tenant, slack_s=100.0), Admitted)


@pytest.mark.parametrize("others", [True, False])
def test_who_has_its_share_leaves_room_for_the_prompts_of_others_if_there_are_any(others: bool) -> None:
    room = ReadingRoom(announces=True)
    if others:
        assert isinstance(room.ask("b", slack_s=0.01), Rejection)
    crowd(room, 12, "a")
    just_s = (12 * READ_ONE_S / 2 + SERVICE_S) / 0.8
    assert isinstance(room.ask("a", slack_s=1.05 * just_s), Rejection if others else Admitted)
    assert isinstance(room.ask("c", slack_s=1.15 * just_s), Admitted), "below its share"


def test_a_little_reading_before_it_leaves_the_house_empty() -> None:
    room = ReadingRoom(announces=True)
    crowd(room, 2)
    slack_s = 1.01 * READ_ONE_S / CONGESTED  # two prompts, two readers: its share of them is one
    assert isinstance(room.ask("b", slack_s=slack_s, max_tokens=2_000), Admitted), "its answer is not guessed at"
    assert next(r for r in room.admitted if r.tenant == "b").cold_start


def test_a_refusal_in_a_crowded_house_tells_how_long_reading_would_wait_and_when_to_come_back() -> None:
    room = ReadingRoom(announces=True)
    crowd(room, 10)
    said = room.ask("b", slack_s=2.0)
    assert isinstance(said, Rejection)
    assert (said.outcome, said.reason) == (Outcome.DEADLINE_INFEASIBLE, "deadline")
    assert said.predicted_wait_s == pytest.approx(10 * PROMPT * READ_ONE_S / PROMPT / 2)
    assert said.retry_hint_s is not None
    assert said.retry_hint_s >= 0.9 * said.predicted_wait_s


def test_one_that_would_not_fit_an_empty_house_either_is_told_so() -> None:
    room = ReadingRoom(announces=True)
    crowd(room, 10)
    said = room.ask("b", slack_s=0.9 * READ_ONE_S)
    assert isinstance(said, Rejection)
    assert (said.reason, said.retry_hint_s) == ("too_long", None)


def test_prompts_whose_retrieval_still_runs_will_be_read_before_it_too() -> None:
    room = ReadingRoom(announces=True)
    for _ in range(10):
        assert isinstance(room.ask("filler", slack_s=100.0, ready=False), Admitted)
    assert room.estimator.unread_tokens == 0
    said = room.ask("b", slack_s=2.0)
    assert isinstance(said, Rejection)
    assert said.reason == "deadline"


def test_a_prompt_that_turns_out_shorter_is_counted_as_what_it_is() -> None:
    room = ReadingRoom(announces=True)
    request = room.request("filler", slack_s=100.0, answer=ANSWER, prompt_tokens=PROMPT, max_tokens=ANSWER, ready=False)
    room.put(request)
    pool = room.scheduler.pools["default"].pool
    assert pool.unread_tokens == PROMPT
    room.scheduler.counted(room.now, request, 300)
    assert pool.unread_tokens == 300
    room.scheduler.ready(room.now, request)
    room.start()
    assert (pool.unread_tokens, room.estimator.unread_tokens) == (0, 300)


def test_a_first_token_waits_for_the_prompts_before_it() -> None:
    room = ReadingRoom(announces=True)
    crowd(room, 10)
    due = dict.fromkeys(("prompt_tokens", "max_tokens"), 10)
    said = room.ask("b", slack_s=100.0, first_token_by=room.now + 1.0, **due)
    assert isinstance(said, Rejection)
    assert said.reason == "first_token"
    assert isinstance(room.ask("b", slack_s=100.0, first_token_by=room.now + 5.0, **due), Admitted)


def test_whose_answers_nobody_knows_is_judged_by_those_of_others_where_reading_is_scarce() -> None:
    room = ReadingRoom(announces=True)
    for _ in range(30):
        room.ask("known", slack_s=100.0)
        room.run(room.now + 2 * SERVICE_S)
    crowd(room, 4)
    prefill_backlog_s = 4 * READ_ONE_S / 2
    fits_read_only = (prefill_backlog_s + READ_ONE_S) / 0.8
    assert isinstance(room.ask("cold", slack_s=1.05 * fits_read_only), Rejection)
    assert isinstance(room.ask("cold", slack_s=1.4 * (prefill_backlog_s + SERVICE_S) / 0.8), Admitted)
