"""What a parent of router processes decides: starts, delays, cover, signals, a rolling restart, and when to give up."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.processes.link import COVER, HAND_OVER, OWN
from services.router.processes.plan import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    SPARE_S,
    START_TRIES,
    START_WITHIN_S,
    STEADY_S,
    Action,
    Finish,
    Notify,
    Plan,
    ProcessState,
    Release,
    Say,
    Signal,
    StartChild,
    delay_s,
    exit_text,
)
from services.runtime.settings import EXIT_BAD_SETTINGS
from services.runtime.starting import EXIT_CANNOT_START

LEAVE_S, HAND_OVER_S = 10.0, 22.0
TERM, HUP, KILL = signal.SIGTERM, signal.SIGHUP, signal.SIGKILL


def new(count: int = 2) -> Plan:
    return Plan(count, leave_s=LEAVE_S, hand_over_s=HAND_OVER_S)


def serving(count: int = 2, now: float = 0.0) -> Plan:
    """All processes are ready, and have just become so."""
    plan = new(count)
    plan.tick(now)
    for index in range(count):
        plan.ready(index, now)
    return plan


def without_words(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def said(actions: list[Action]) -> list[str]:
    return [action.event for action in actions if isinstance(action, Say)]


def test_all_processes_start_at_once() -> None:
    assert new(3).tick(0.0) == [StartChild(0), StartChild(1), StartChild(2)]


def test_the_first_that_is_ready_accepts_for_all_until_all_are() -> None:
    plan = new(2)
    plan.tick(0.0)
    assert plan.ready(1, 1.0) == [Notify(1, COVER)]
    assert plan.ready(0, 2.0) == [Notify(1, OWN)]


def test_a_process_that_ends_after_a_steady_time_starts_again_at_once_and_the_others_cover() -> None:
    plan = serving()
    assert without_words(plan.ended(0, -9, STEADY_S)) == [Notify(1, COVER), StartChild(0)]
    assert plan.ready(0, STEADY_S + 1) == [Notify(1, OWN)]


def test_one_that_ends_again_and_again_starts_after_ever_longer_delays() -> None:
    plan, now, delays = serving(), 0.0, []
    for _ in range(12):
        plan.ended(0, 1, now)
        at = plan.next_at()
        assert at is not None
        delays.append(at - now)
        now = at
        assert plan.tick(now - 0.001) == []
        assert plan.tick(now) == [StartChild(0)]
        plan.ready(0, now)
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert delays[-1] == MAX_DELAY_S
    assert plan.of(ProcessState.READY) == [0, 1], "the other one serves all the while"


@given(st.integers(0, 10_000))
def test_a_delay_is_bounded_and_never_falls_with_the_failures(failures: int) -> None:
    assert 0.0 <= delay_s(failures) <= delay_s(failures + 1) <= MAX_DELAY_S


@pytest.mark.parametrize("status", [EXIT_BAD_SETTINGS, EXIT_CANNOT_START])
def test_a_fault_of_the_operator_ends_everything_if_nothing_has_ever_served(status: int) -> None:
    plan = new()
    plan.tick(0.0)
    actions = plan.ended(0, status, 1.0)
    assert without_words(actions) == [Release(), Signal(1, TERM)]
    assert "gives up" in said(actions)[-1]
    assert without_words(plan.ended(1, -TERM, 1.1)) == [Finish(status)]


def test_processes_that_cannot_start_are_tried_a_few_times() -> None:
    plan, now = new(1), 0.0
    plan.tick(now)
    for _ in range(START_TRIES - 1):
        assert without_words(plan.ended(0, 1, now)) == []
        now = plan.next_at() or 0.0
        assert plan.tick(now) == [StartChild(0)]
    assert without_words(plan.ended(0, 1, now)) == [Release(), Finish(EXIT_CANNOT_START)]


def test_once_one_has_served_the_parent_never_gives_up() -> None:
    plan, now = serving(), 0.0
    for _ in range(10 * START_TRIES):
        assert Finish not in map(type, plan.ended(0, EXIT_BAD_SETTINGS, now))
        now = plan.next_at() or 0.0
        assert StartChild(0) in plan.tick(now)
    assert now > MAX_DELAY_S


def test_a_start_that_takes_too_long_is_killed() -> None:
    plan = new(1)
    plan.tick(0.0)
    assert plan.tick(START_WITHIN_S - 1) == []
    assert without_words(plan.tick(START_WITHIN_S)) == [Signal(0, KILL)]


def test_a_reload_goes_to_all_and_to_one_that_starts_once_it_is_ready() -> None:
    plan = new(2)
    plan.tick(0.0)
    plan.ready(0, 1.0)
    assert plan.reload() == [Signal(0, HUP)]
    assert plan.ready(1, 2.0)[0] == Signal(1, HUP), "it may have read its files before they changed"
    assert plan.reload() == [Signal(0, HUP), Signal(1, HUP)]


def test_a_signal_to_stop_goes_to_all_and_the_parent_ends_after_the_last() -> None:
    plan = serving()
    assert plan.stop(5.0) == [Release(), Signal(0, TERM), Signal(1, TERM)]
    assert plan.leaving(0, 5.1) == plan.leaving(1, 5.1) == []
    assert plan.ended(0, 0, 6.0) == []
    assert plan.ended(1, 0, 7.0) == [Finish(0)]


def test_a_second_signal_ends_everything_at_once() -> None:
    plan = serving()
    plan.stop(5.0)
    assert plan.stop(5.1) == [Finish(1)]


def test_a_process_that_does_not_leave_is_killed_and_the_status_says_so() -> None:
    plan = serving()
    plan.stop(0.0)
    plan.ended(0, 0, 1.0)
    assert plan.next_at() == LEAVE_S + SPARE_S
    assert without_words(plan.tick(LEAVE_S + SPARE_S)) == [Signal(1, KILL)]
    assert plan.ended(1, -KILL, 20.0) == [Finish(1)]


def test_nothing_starts_once_the_parent_stops() -> None:
    plan = serving()
    plan.ended(0, 1, 0.0)
    plan.stop(0.0)
    assert plan.next_at() == LEAVE_S + SPARE_S
    assert plan.tick(1.0) == []


def test_a_rolling_restart_replaces_one_after_the_other() -> None:
    plan, now = serving(3), 100.0
    actions = plan.restart(now)
    for index in range(3):
        others = [other for other in range(3) if other != index]
        assert without_words(actions)[-1] == Notify(index, HAND_OVER)
        assert plan.leaving(index, now) == [Notify(other, COVER) for other in others]
        assert without_words(plan.ended(index, 0, now)) == [StartChild(index)]
        now += 1.0
        actions = plan.ready(index, now)
        assert [*filter(lambda action: isinstance(action, Notify) and action.word == OWN, actions)] == [
            Notify(other, OWN) for other in others
        ]
    assert said(actions) == ["all router processes have been replaced"]
    assert not plan.restarting


def test_a_rolling_restart_waits_until_all_are_ready() -> None:
    plan = serving(2)
    plan.ended(1, -9, STEADY_S)
    assert without_words(plan.restart(STEADY_S)) == []
    assert Notify(0, HAND_OVER) in plan.ready(1, STEADY_S + 1)


def test_a_second_rolling_restart_does_nothing_while_one_is_under_way() -> None:
    plan = serving(2)
    plan.restart(0.0)
    assert without_words(plan.restart(1.0)) == []


def test_a_rolling_restart_ends_where_a_new_process_does_not_start_and_the_others_stay() -> None:
    plan = serving(2)
    plan.restart(0.0)
    plan.leaving(0, 0.0)
    plan.ended(0, 0, 1.0)
    actions = plan.ended(0, EXIT_BAD_SETTINGS, 2.0)
    assert not plan.restarting
    assert "the rolling restart ends: the new process does not start" in said(actions)
    assert plan.of(ProcessState.READY) == [1]


def test_a_process_that_does_not_hand_over_in_time_is_killed() -> None:
    plan = serving(2)
    plan.restart(0.0)
    assert without_words(plan.tick(HAND_OVER_S + SPARE_S)) == [Signal(0, KILL)]
    assert StartChild(0) in plan.ended(0, -KILL, 30.0), "and replaced"


def test_one_that_leaves_by_itself_is_covered_for_and_starts_again() -> None:
    plan = serving(2)
    assert plan.leaving(0, 50.0) == [Notify(1, COVER)]
    assert StartChild(0) in plan.ended(0, 0, 51.0)


def test_an_exit_is_told_for_people() -> None:
    assert [exit_text(status) for status in (0, 2, -9, -200)] == ["status 0", "status 2", "SIGKILL", "signal 200"]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ready", "leaving", "ended", "crashed", "tick", "reload", "restart", "stop"]),
        st.integers(0, 2),
        st.floats(0.0, 40.0),
    ),
    max_size=60,
)


@given(EVENTS)
def test_in_any_order_of_events_one_is_missing_at_most_by_choice_and_who_serves_covers(
    events: list[tuple[str, int, float]],
) -> None:
    plan, now, told = new(3), 0.0, {}
    running: set[int] = set()
    finished: list[Finish] = []

    def do(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartChild):
                assert action.index not in running
                assert not plan.stopping
                running.add(action.index)
                told.pop(action.index, None)
            elif isinstance(action, Notify):
                assert action.index in running
                told[action.index] = action.word if action.word != HAND_OVER else told.get(action.index)
            elif isinstance(action, Signal):
                assert action.index in running
            elif isinstance(action, Finish):
                finished.append(action)

    do(plan.tick(now))
    for name, index, pause_s in events:
        now += pause_s
        if finished:
            break
        if name in ("ended", "crashed"):
            if index in running:
                running.discard(index)
                do(plan.ended(index, 0 if name == "ended" else -9, now))
        elif name in ("ready", "leaving"):
            if index in running:
                do(getattr(plan, name)(index, now))
        elif name == "stop":
            if not plan.stopping:
                do(plan.stop(now))
        else:
            do(plan.reload() if name == "reload" else getattr(plan, name)(now))
        handed = [child for child in plan.children if child.asked_to_leave]
        assert len(handed) <= 1
        ready = plan.of(ProcessState.READY)
        if not plan.stopping:
            assert all((told.get(one) == COVER) == (len(ready) < 3) for one in ready)
            assert all(
                child.due is not None for child in plan.children if child.state is not ProcessState.READY
            ) or any(child.due is None for child in plan.children if child.runs), (
                "each that does not run is due to start"
            )
        if finished:
            assert not running


def test_delays_double() -> None:
    assert all(later in (2 * earlier, MAX_DELAY_S) for earlier, later in pairwise(map(delay_s, range(1, 20))))
