"""One ticket, settled once: whatever order the endings come in, every hold is released exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.outcome import Ending, Outcome
from services.worker.ticket import Ticket


def test_finishing_releases_every_hold_in_reverse_order() -> None:
    released: list[str] = []
    ticket = Ticket("r-1", started_at=0.0)
    ticket.hold(lambda: released.append("cap"))
    ticket.hold(lambda: released.append("slot"))
    assert ticket.finish(Outcome.SERVED)
    assert released == ["slot", "cap"]
    assert ticket.outcome is Outcome.SERVED


def test_a_second_finish_changes_nothing_and_is_counted() -> None:
    released: list[str] = []
    ticket = Ticket("r-1", started_at=0.0)
    ticket.hold(lambda: released.append("cap"))
    assert ticket.finish(Outcome.CLIENT_GONE)
    assert not ticket.finish(Outcome.SERVED)
    assert (ticket.outcome, ticket.second_finishes, released) == (Outcome.CLIENT_GONE, 1, ["cap"])


def test_a_hold_that_comes_after_the_end_is_released_at_once() -> None:
    released: list[str] = []
    ticket = Ticket("r-1", started_at=0.0)
    ticket.finish(Outcome.DEADLINE_EXCEEDED)
    ticket.hold(lambda: released.append("late slot"))
    assert released == ["late slot"]


def test_a_hold_given_back_early_is_not_released_again() -> None:
    released: list[str] = []
    ticket = Ticket("r-1", started_at=0.0)

    def slot() -> None:
        released.append("slot")

    ticket.hold(slot)
    ticket.release(slot)
    ticket.finish(Outcome.SERVED)
    assert released == ["slot"]


def test_giving_back_what_is_not_held_is_a_bug_and_says_so() -> None:
    ticket = Ticket("r-1", started_at=0.0)
    with pytest.raises(ValueError, match="not in list"):
        ticket.release(lambda: None)


@given(st.lists(st.sampled_from(["hold", "release", "finish"]), max_size=60))
def test_every_hold_is_released_exactly_once_whatever_happens(steps: list[str]) -> None:
    ticket = Ticket("r-1", started_at=0.0)
    counts: list[int] = []
    held = []
    for step in steps:
        if step == "hold":
            index = len(counts)
            counts.append(0)

            def release(index: int = index) -> None:
                counts[index] += 1

            ticket.hold(release)
            if ticket.outcome is None:
                held.append(release)
        elif step == "release" and held and ticket.outcome is None:
            ticket.release(held.pop())
        elif step == "finish":
            ticket.finish(Outcome.SERVED)
            held.clear()
    ticket.finish(Outcome.SERVED)
    assert all(count == 1 for count in counts)


def test_its_repr_tells_its_state() -> None:
    ticket = Ticket("r-1", started_at=0.0)
    assert repr(ticket) == "<Ticket r-1 open, 0 holds>"
    ticket.finish(Outcome.YIELD)
    assert repr(ticket) == "<Ticket r-1 yield>"


def test_every_outcome_has_used_nothing_something_or_a_worker() -> None:
    assert {outcome.ending for outcome in Outcome} == set(Ending)
    assert Outcome.YIELD.ending is Ending.REJECTED
    assert Outcome.DEADLINE_EXPIRED.ending is Ending.EVICTED
    assert Outcome.DEADLINE_EXCEEDED.ending is Ending.FAILED


def test_where_it_must_not_happen_a_second_finish_is_an_error() -> None:
    ticket = Ticket("r-1", 0.0, strict=True)
    assert ticket.finish(Outcome.SERVED)
    with pytest.raises(RuntimeError, match="finished again, as client_gone"):
        ticket.finish(Outcome.CLIENT_GONE)
    assert ticket.outcome is Outcome.SERVED
