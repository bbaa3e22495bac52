"""When a user asks once more: as often as its scenario says, and never after an answer."""

from __future__ import annotations

import random

import pytest

from loadtests.scenarios.model import Retries
from loadtests.users.returning import PATIENCE_S, again_in
from loadtests.users.verdict import Kind, Verdict, failed

REFUSED = Verdict(Kind.REFUSED, "yield", retry=True, hint_s=2.0)
FINAL = Verdict(Kind.REFUSED, "yield")
OBEYS, INSISTS = Retries(attempts=2, wait="hint"), Retries(attempts=2, wait="immediate")


def after(retries: Retries, verdict: Verdict, tries: int = 1) -> float | None:
    return again_in(retries, verdict, tries, random.Random(1))


@pytest.mark.parametrize("retries", [OBEYS, INSISTS, Retries(attempts=2, wait="backoff")])
def test_a_question_is_put_three_times_where_two_more_are_allowed_and_never_after_an_answer(retries: Retries) -> None:
    assert [after(retries, REFUSED, tries) is None for tries in (1, 2, 3)] == [False, False, True]
    assert after(retries, Verdict(Kind.SERVED)) is None


def test_a_hint_is_obeyed_and_who_is_not_invited_or_told_to_wait_too_long_goes_away() -> None:
    assert after(OBEYS, REFUSED) == 2.0
    assert after(OBEYS, FINAL) is None
    assert after(OBEYS, Verdict(Kind.REFUSED, "yield", retry=True, hint_s=PATIENCE_S + 1)) is None
    assert after(OBEYS, failed("500")) is None


def test_one_who_insists_takes_no_hint() -> None:
    assert [after(INSISTS, each) for each in (REFUSED, FINAL, failed("500"))] == [0.0] * 3


def test_a_backoff_doubles_up_to_its_bound() -> None:
    waits = Retries(attempts=9, wait="backoff", base_s=1.0, at_most_s=4.0)
    most = [max(again_in(waits, FINAL, tries, random.Random(seed)) or 0 for seed in range(200)) for tries in (1, 2, 9)]
    assert most == pytest.approx([1.0, 2.0, 4.0], rel=0.1)


def test_one_who_leaves_asks_nothing_again() -> None:
    assert after(Retries(attempts=2), REFUSED) is None
