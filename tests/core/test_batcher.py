"""The batch former: its two policies, and the bounds that hold whatever arrives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.batcher import BatchFormer, Batching, Fire, Wait, Waiting


def former(batching: Batching = Batching.CONTINUOUS, **sizes: float) -> BatchFormer[str]:
    given = {"slots": 2, "queue_size": 3, "window_s": 0.01, **sizes}
    return BatchFormer(
        batching, slots=int(given["slots"]), queue_size=int(given["queue_size"]), window_s=given["window_s"]
    )


def waiting(id: str, arrived_at: float = 0.0, deadline: float = 100.0) -> Waiting[str]:
    return Waiting(id, arrived_at, deadline, id)


def ids(batch: tuple[Waiting[str], ...]) -> list[str]:
    return [member.id for member in batch]


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


def test_the_next_wake_up_is_the_nearest_deadline():
    line = former(Batching.STATIC, slots=8, window_s=5.0)
    line.offer(waiting("a", deadline=3.0), 0)
    assert line.decide(0.0, 0) == Wait(until=3.0)


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


def test_repr_tells_the_state():
    line = former()
    line.offer(waiting("a"), 0)
    assert repr(line) == "<BatchFormer continuous, 1 waiting, 2 slots + 3, window 10 ms>"


@dataclass
class Replay:
    """A reference engine: it starts what fires, and ends some of it between decisions."""

    line: BatchFormer[str]
    now: float = 0.0
    running: set[str] = field(default_factory=set)
    offered: dict[str, Waiting[str]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    fired: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)

    def arrive(self, slack_s: float) -> None:
        one = waiting(f"r{len(self.offered)}", self.now, self.now + slack_s)
        if self.line.offer(one, len(self.running)):
            self.offered[one.id] = one

    def cancel(self, choice: int) -> None:
        there = [id for id in self.offered if id not in self.fired and id not in self.expired]
        if there and self.line.discard(id := there[choice % len(there)]):
            self.cancelled.add(id)

    def end(self, choice: int) -> None:
        if self.running:
            self.running.discard(sorted(self.running)[choice % len(self.running)])

    def decide(self) -> Fire[str] | Wait[str]:
        before = len(self.running)
        decision = self.line.decide(self.now, before)
        self.expired += ids(decision.expired)
        if isinstance(decision, Fire):
            assert decision.admit
            assert self.line.batching is Batching.CONTINUOUS or before == 0
            for one in decision.admit:
                assert one.deadline > self.now
                assert one.id not in self.cancelled
            self.fired += ids(decision.admit)
            self.running.update(ids(decision.admit))
        assert len(self.running) <= self.line.slots
        assert len(self.running) + len(self.line) <= self.line.slots + self.line.queue_size
        return decision


EVENTS = st.one_of(
    st.tuples(st.just("arrive"), st.floats(0.001, 2.0)),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
    st.tuples(st.just("end"), st.integers(0, 99)),
    st.tuples(st.just("pass"), st.floats(0.0, 0.5)),
)


@given(
    st.sampled_from(Batching), st.integers(1, 4), st.integers(1, 4), st.floats(0, 0.2), st.lists(EVENTS, max_size=60)
)
def test_the_bounds_hold_whatever_happens(batching, slots, queue_size, window_s, events):
    replay = Replay(former(batching, slots=slots, queue_size=queue_size, window_s=window_s))
    for kind, value in events:
        if kind == "pass":
            replay.now += value
        else:
            getattr(replay, kind)(value)
        decision = replay.decide()
        line = replay.line
        if batching is Batching.CONTINUOUS:
            assert len(line) == 0 or len(replay.running) == slots  # work conservation
        elif isinstance(decision, Wait) and len(line) and not replay.running:
            oldest = min(one.arrived_at for id, one in replay.offered.items() if _waits(replay, id))
            assert len(line) < slots
            assert replay.now < oldest + window_s  # the window, literally
        if isinstance(decision, Wait) and decision.until is not None:
            assert decision.until > replay.now
    known = [*replay.fired, *replay.expired, *replay.cancelled, *ids(replay.line.flush())]
    assert sorted(known) == sorted(replay.offered)  # everyone ended exactly once, or still waits
    assert replay.fired == sorted(replay.fired, key=lambda id: int(id[1:]))  # first come, first served


def _waits(replay: Replay, id: str) -> bool:
    return id not in replay.fired and id not in replay.expired and id not in replay.cancelled


@given(st.sampled_from(Batching), st.integers(1, 4), st.floats(0, 0.2), st.lists(st.floats(0.001, 1.0), max_size=8))
def test_waking_when_told_is_enough_to_start_or_expire_everyone(batching, slots, window_s, slacks):
    replay = Replay(former(batching, slots=slots, queue_size=8, window_s=window_s))
    for slack_s in slacks:
        replay.arrive(slack_s)
    for _ in range(3 * len(slacks) + 1):
        decision = replay.decide()
        if isinstance(decision, Fire):
            replay.running.clear()
        elif decision.until is not None:
            replay.now = decision.until
    assert len(replay.line) == 0
