"""The breaker, by its table and by what it promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.breaker import TRANSITIONS, Breaker, BreakerEvent, BreakerState, Change


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker(failures_to_open=3, open_for_s=1.0, max_open_s=4.0)
    for _ in range(3):
        breaker.failed(now, asked_at=now)
    return breaker


def test_three_failures_in_a_row_open_it_and_the_third_says_so() -> None:
    breaker = Breaker(failures_to_open=3)
    assert [breaker.failed(0.0, asked_at=0.0) for _ in range(3)] == [
        None,
        None,
        Change(BreakerState.CLOSED, BreakerState.OPEN),
    ]
    assert not breaker.allow(0.5)


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(failures_to_open=2)
    for _ in range(10):
        assert breaker.failed(0.0, asked_at=0.0) is None
        assert breaker.succeeded(0.0) is None
    assert breaker.state is BreakerState.CLOSED


def test_calls_that_fail_together_are_one_failure() -> None:
    breaker = Breaker(failures_to_open=3)
    for _ in range(50):
        breaker.failed(0.02, asked_at=0.0)
    assert breaker.state is BreakerState.CLOSED
    for now in (1.0, 2.0):
        breaker.failed(now, asked_at=now - 0.5)
    assert breaker.state is BreakerState.OPEN


def test_after_its_time_one_probe_passes_and_no_second() -> None:
    breaker = tripped()
    assert breaker.allow(1.0)
    assert not breaker.allow(1.0)
    assert not breaker.allow(1.9)


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = tripped()
    breaker.allow(1.0)
    assert breaker.succeeded(1.1) == Change(BreakerState.HALF_OPEN, BreakerState.CLOSED)
    assert breaker.allow(1.1)
    assert breaker.allow(1.1)


def test_probes_that_fail_double_the_pause_up_to_its_limit() -> None:
    breaker, now, pauses = tripped(), 0.0, []
    for _ in range(5):
        began = now
        while not breaker.allow(now):
            now += 0.25
        pauses.append(now - began)
        assert breaker.failed(now, asked_at=now) == Change(BreakerState.HALF_OPEN, BreakerState.OPEN)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_the_pause_is_short_again_after_it_has_closed() -> None:
    breaker = tripped()
    assert breaker.allow(1.0)
    breaker.failed(1.0, asked_at=1.0)
    assert breaker.allow(3.0)
    breaker.succeeded(3.0)
    for _ in range(3):
        breaker.failed(4.0, asked_at=4.0)
    assert breaker.allow(5.0)


def test_a_probe_that_never_reports_does_not_shut_it_for_ever() -> None:
    breaker = tripped()
    assert breaker.allow(1.0)
    assert breaker.allow(2.0)
    assert breaker.succeeded(2.1) is not None


def test_answers_to_what_was_asked_before_it_opened_change_nothing() -> None:
    breaker = tripped()
    assert breaker.succeeded(0.1) is None
    assert breaker.failed(0.2, asked_at=0.2) is None
    assert breaker.state is BreakerState.OPEN
    assert breaker.allow(1.0)


@given(st.lists(st.tuples(st.sampled_from(["allow", "succeeded", "failed"]), st.floats(0, 2)), max_size=200))
def test_whatever_happens_it_is_in_a_state_of_the_table_and_opens_again(steps: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(failures_to_open=2, open_for_s=1.0, max_open_s=4.0), 0.0
    for method, later in steps:
        now += later
        before = breaker.state
        change = breaker.failed(now, asked_at=now) if method == "failed" else getattr(breaker, method)(now)
        if isinstance(change, Change):
            assert (change.before, change.after) == (before, breaker.state)
            assert breaker.state in TRANSITIONS.values()
    assert breaker.allow(now + 4.0), "at the latest after its longest pause, someone may ask"


def test_the_table_knows_every_event_that_a_state_can_meet() -> None:
    for state in BreakerState:
        assert (state, BreakerEvent.SUCCESS) in TRANSITIONS
        assert (state, BreakerEvent.FAILURE) in TRANSITIONS
    assert (BreakerState.CLOSED, BreakerEvent.TRIPPED) in TRANSITIONS


@pytest.mark.parametrize("wrong", [{"failures_to_open": 0}, {"open_for_s": 0.0}, {"open_for_s": 60.0}])
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Breaker(**wrong)  # type: ignore[arg-type]


def test_its_repr_tells_its_state() -> None:
    assert repr(tripped()) == "<Breaker open until 1, 0/3 failures>"
    assert repr(Breaker()) == "<Breaker closed, 0/3 failures>"
