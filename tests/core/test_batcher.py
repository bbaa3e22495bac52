"""The batch former: its two policies, its line, and what it refuses. Memory is in `test_batcher_memory`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.batcher import Batching, Fire, Trigger, Wait
from tests.core.batches import former, ids, waiting


def test_an_idle_continuous_engine_fires_at_once_and_alone():
    line = former()
    line.offer(waiting("a"), 0)
    assert line.decide(0.0, 0) == Fire((waiting("a"),))


def test_a_continuous_batch_is_joined_while_a_slot_is_free():
    line = former(slots=2)
    for id in "abc":
        line.offer(waiting(id), 1)
    assert ids(line.decide(0.0, 1).admit) == ["a"]
    assert line.decide(0.0, 2) == Wait(until=100.0)
    assert ids(line.decide(0.0, 0).admit) == ["b", "c"]


def test_an_empty_line_asks_for_no_wake_up():
    assert former().decide(0.0, 0) == Wait(until=None)
    assert former(Batching.STATIC).decide(0.0, 0) == Wait(until=None)


def test_a_static_batch_fires_when_full_before_its_window_ends():
    line = former(Batching.STATIC)
    line.offer(waiting("a"), 0)
    assert line.decide(0.0, 0) == Wait(until=0.01)
    line.offer(waiting("b", arrived_at=0.002), 0)
    assert ids(line.decide(0.002, 0).admit) == ["a", "b"]


def test_a_static_batch_fires_part_full_exactly_when_the_window_of_its_oldest_ends():
    line = former(Batching.STATIC, slots=8)
    line.offer(waiting("a", arrived_at=1.0), 0)
    line.offer(waiting("b", arrived_at=1.009), 0)
    assert line.decide(1.0099, 0) == Wait(until=1.01)
    assert ids(line.decide(1.01, 0).admit) == ["a", "b"]


def test_the_window_is_of_the_one_who_came_first_whoever_is_the_most_urgent():
    line = former(Batching.STATIC, slots=8)
    line.offer(waiting("a", arrived_at=1.0, deadline=9.0), 0)
    line.offer(waiting("b", arrived_at=1.009, deadline=3.0), 0)
    assert line.decide(1.0099, 0) == Wait(until=1.01)
    assert ids(line.decide(1.01, 0).admit) == ["b", "a"]


def test_nobody_joins_a_static_batch_that_runs():
    line = former(Batching.STATIC, slots=8)
    line.offer(waiting("a"), 1)
    assert line.decide(50.0, 1) == Wait(until=100.0)


def test_the_bound_counts_slots_and_line_together_so_a_burst_on_an_idle_engine_fits():
    line = former(slots=2, queue_size=3)
    assert [line.offer(waiting(id), 0) for id in "abcdef"] == [True] * 5 + [False]
    assert ids(line.decide(0.0, 0).admit) == ["a", "b"]
    assert not line.offer(waiting("g"), 2)
    assert line.offer(waiting("g"), 1)


def test_the_dead_leave_the_line_and_their_slack_is_not_clamped():
    line = former(slots=1)
    line.offer(waiting("late", deadline=1.0), 0)
    line.offer(waiting("a"), 0)
    decision = line.decide(1.0, 0)
    assert (ids(decision.expired), ids(decision.admit)) == (["late"], ["a"])


def test_the_earliest_deadline_goes_first_and_of_equal_ones_who_came_first():
    line = former(slots=1, queue_size=9)
    for id, deadline in (("a", 9.0), ("b", 5.0), ("c", 7.0), ("d", 5.0), ("never", math.inf), ("e", 5.0)):
        line.offer(waiting(id, deadline=deadline), 1)
    assert [ids(line.decide(0.0, 0).admit)[0] for _ in range(6)] == ["b", "d", "e", "c", "a", "never"]


def test_the_next_wake_up_is_the_nearest_deadline():
    line = former(Batching.STATIC, slots=8, window_s=5.0)
    line.offer(waiting("b", deadline=4.0), 0)
    line.offer(waiting("a", deadline=3.0), 0)
    assert line.decide(0.0, 0) == Wait(until=3.0)


def test_a_static_batch_fires_at_the_latest_start_of_its_tightest_deadline():
    line = former(Batching.STATIC, slots=8, window_s=5.0)
    line.offer(waiting("loose", deadline=4.0, service_s=0.5), 0)
    line.offer(waiting("tight", deadline=4.5, service_s=1.5), 0)
    assert line.decide(0.0, 0) == Wait(until=3.0)
    assert line.decide(2.999, 0) == Wait(until=3.0)
    fired = line.decide(3.0, 0)
    assert (ids(fired.admit), fired.trigger) == (["loose", "tight"], Trigger.LATEST_START)


def test_one_that_is_too_late_to_be_whole_fires_at_once_while_its_deadline_lasts():
    line = former(Batching.STATIC, slots=8, window_s=5.0)
    line.offer(waiting("a", deadline=1.0, service_s=3.0), 0)
    assert line.decide(0.0, 0).trigger is Trigger.LATEST_START
    line.offer(waiting("b", deadline=1.0, service_s=3.0), 0)
    assert ids(line.decide(1.0, 0).expired) == ["b"]


def test_a_batch_says_why_it_fired():
    def why(batching: Batching, *, members: int, now: float, window_s: float = 0.01) -> Trigger:
        line = former(batching, slots=2, window_s=window_s)
        for n in range(members):
            line.offer(waiting(str(n)), 0)
        return line.decide(now, 0).trigger

    assert why(Batching.CONTINUOUS, members=2, now=0.0) is Trigger.IDLE
    assert why(Batching.STATIC, members=2, now=0.0) is Trigger.FULL
    assert why(Batching.STATIC, members=1, now=0.01) is Trigger.WINDOW_END
    assert why(Batching.STATIC, members=1, now=0.0, window_s=0.0) is Trigger.WINDOW_END


def test_when_the_one_who_came_first_leaves_the_window_is_that_of_the_next():
    line = former(Batching.STATIC, slots=8)
    line.offer(waiting("a", arrived_at=0.0), 0)
    line.offer(waiting("b", arrived_at=0.004), 0)
    line.discard("a")
    assert line.decide(0.01, 0) == Wait(until=0.014)


def test_one_without_a_deadline_asks_for_no_wake_up_while_slots_are_taken():
    line = former(slots=1)
    line.offer(waiting("a", deadline=math.inf), 1)
    assert line.decide(0.0, 1) == Wait(until=None)


def test_a_discarded_one_never_fires_and_its_place_is_free():
    line = former(slots=1, queue_size=1)
    line.offer(waiting("a"), 1)
    assert not line.offer(waiting("b"), 1)
    assert line.discard("a")
    assert not line.discard("a")
    assert line.offer(waiting("b"), 1)
    assert ids(line.decide(0.0, 0).admit) == ["b"]


def test_flush_empties_the_line_in_order():
    line = former()
    for id in "ab":
        line.offer(waiting(id), 0)
    assert ids(line.flush()) == ["a", "b"]
    assert len(line) == 0


@pytest.mark.parametrize("sizes", [{"slots": 0}, {"queue_size": 0}, {"window_s": -1.0}, {"window_s": math.nan}])
def test_a_bound_that_bounds_nothing_is_refused(sizes: dict[str, float]):
    with pytest.raises(ValueError, match="must be"):
        former(**sizes)


def test_a_request_twice_or_without_a_deadline_is_a_bug_in_the_caller():
    line = former()
    line.offer(waiting("a"), 0)
    with pytest.raises(ValueError, match="already waits"):
        line.offer(waiting("a"), 0)
    with pytest.raises(ValueError, match="NaN"):
        line.offer(waiting("b", deadline=math.nan), 0)
    for service_s in (-1.0, math.nan):
        with pytest.raises(ValueError, match="finite and not negative"):
            line.offer(waiting("b", service_s=service_s), 0)


def test_repr_tells_the_state():
    line = former()
    line.offer(waiting("a"), 0)
    assert repr(line) == "<BatchFormer continuous, 1 waiting, 2 slots + 3, window 10 ms>"


@given(st.sampled_from(Batching), st.integers(1, 4), st.floats(0, 0.2), st.lists(st.floats(0.001, 1.0), max_size=8))
def test_waking_when_told_is_enough_to_start_or_expire_everyone(batching, slots, window_s, slacks):
    line = former(batching, slots=slots, queue_size=8, window_s=window_s)
    for n, slack_s in enumerate(slacks):
        line.offer(waiting(str(n), deadline=slack_s, service_s=slack_s / 3), 0)
    now, ended = 0.0, 0
    for _ in range(3 * len(slacks) + 1):
        decision = line.decide(now, 0)
        ended += len(decision.expired)
        if isinstance(decision, Fire):
            ended += len(decision.admit)
        elif decision.until is not None:
            now = decision.until
    assert (ended, len(line)) == (len(slacks), 0)
