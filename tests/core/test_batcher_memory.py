"""The batch former with memory counted in tokens, with prompts that take time to read, and with slots that change."""

from __future__ import annotations

import pytest

from services.core.batcher import Batching, Fire, Trigger, Wait
from tests.core.batches import former, ids, waiting


def test_a_batch_is_admitted_in_order_of_deadline_while_slots_and_memory_last():
    line = former(slots=8, queue_size=8)
    for id, deadline in (("c", 30.0), ("a", 10.0), ("b", 20.0)):
        line.offer(waiting(id, deadline=deadline, tokens=40), 0)
    assert ids(line.decide(0.0, 0, free_tokens=100).admit) == ["a", "b"]
    assert ids(line.decide(0.0, 1, free_tokens=40).admit) == ["c"]


def test_nobody_overtakes_a_head_that_does_not_fit():
    line = former(slots=8, queue_size=8)
    line.offer(waiting("long", deadline=10.0, tokens=90), 1)
    line.offer(waiting("short", deadline=20.0, tokens=10), 1)
    assert line.decide(0.0, 1, free_tokens=89) == Wait(until=10.0)
    assert ids(line.decide(0.0, 1, free_tokens=90).admit) == ["long"]


def test_memory_that_is_overdrawn_lets_nobody_in():
    line = former()
    line.offer(waiting("free of charge"), 1)
    assert line.decide(0.0, 1, free_tokens=-1) == Wait(until=100.0)
    assert ids(line.decide(0.0, 1, free_tokens=0).admit) == ["free of charge"]


def test_a_static_batch_is_what_fits_and_full_when_memory_is():
    line = former(Batching.STATIC, slots=8, queue_size=8, window_s=5.0)
    for id in "abc":
        line.offer(waiting(id, tokens=40), 0)
    fired = line.decide(0.0, 0, free_tokens=100)
    assert (ids(fired.admit), fired.trigger) == (["a", "b"], Trigger.FULL)
    assert line.decide(0.0, 0, free_tokens=100) == Wait(until=5.0)


def test_an_idle_static_engine_whose_memory_the_head_does_not_fit_waits_for_its_deadline():
    line = former(Batching.STATIC, slots=8)
    line.offer(waiting("long", deadline=3.0, tokens=90), 0)
    line.offer(waiting("short", deadline=4.0, tokens=10), 0)
    assert line.decide(1.0, 0, free_tokens=50) == Wait(until=3.0)
    assert line.decide(3.0, 0, free_tokens=50) == Fire((waiting("short", deadline=4.0, tokens=10),), expired=(
        waiting("long", deadline=3.0, tokens=90),
    ))  # fmt: skip


def test_one_whose_prompt_could_not_be_read_before_its_deadline_never_starts():
    line = former(slots=2)
    line.offer(waiting("futile", deadline=3.0, ready_s=2.0), 0)
    line.offer(waiting("a", deadline=4.0, ready_s=2.0), 0)
    decision = line.decide(1.0, 0)
    assert (ids(decision.expired), ids(decision.admit)) == (["futile"], ["a"])


def test_one_that_would_start_in_vain_takes_no_slot_and_no_memory_from_those_behind():
    line = former(slots=2, queue_size=9)
    for id, ready_s in (("f1", 9.0), ("a", 0.0), ("f2", 9.0), ("b", 0.0)):
        line.offer(waiting(id, deadline=5.0, tokens=50, ready_s=ready_s), 0)
    decision = line.decide(0.0, 0, free_tokens=100)
    assert (ids(decision.expired), ids(decision.admit)) == (["f1", "f2"], ["a", "b"])


def test_one_that_would_start_in_vain_leaves_even_when_its_memory_is_not_free():
    line = former()
    line.offer(waiting("futile", deadline=5.0, tokens=50, ready_s=9.0), 1)
    line.offer(waiting("a", deadline=6.0, tokens=10), 1)
    decision = line.decide(0.0, 1, free_tokens=20)
    assert (ids(decision.expired), ids(decision.admit)) == (["futile"], ["a"])


def test_time_to_read_is_looked_at_only_when_a_slot_is_free():
    line = former(slots=1)
    line.offer(waiting("a", deadline=3.0, ready_s=2.0), 1)
    assert line.decide(2.0, 1) == Wait(until=3.0)
    assert line.decide(2.0, 0) == Wait(until=None, expired=(waiting("a", deadline=3.0, ready_s=2.0),))


def test_a_head_without_memory_is_woken_for_when_its_start_becomes_futile():
    line = former()
    line.offer(waiting("a", deadline=3.0, tokens=50, ready_s=2.0), 1)
    assert line.decide(0.5, 1, free_tokens=20) == Wait(until=1.0)
    assert ids(line.decide(1.0, 1, free_tokens=20).expired) == ["a"]


def test_a_gathering_static_batch_drops_a_member_the_moment_it_becomes_futile():
    line = former(Batching.STATIC, slots=8, window_s=5.0)
    line.offer(waiting("a", deadline=9.0), 0)
    line.offer(waiting("b", deadline=9.0, ready_s=6.0), 0)
    assert line.decide(0.0, 0) == Wait(until=3.0)
    decision = line.decide(3.0, 0)
    assert decision == Wait(until=5.0, expired=(waiting("b", deadline=9.0, ready_s=6.0),))


def test_an_engine_that_lost_slots_starts_nobody_until_fewer_run_than_it_has():
    line = former(slots=4, queue_size=2)
    line.resize(2)
    assert line.offer(waiting("a"), 3)
    assert not line.offer(waiting("b"), 3)
    assert line.decide(0.0, 3) == line.decide(0.0, 2) == Wait(until=100.0)
    assert ids(line.decide(0.0, 1).admit) == ["a"]


def test_an_engine_that_gained_slots_fills_them():
    line = former(slots=1, queue_size=3)
    for id in "abc":
        line.offer(waiting(id), 1)
    line.resize(3)
    assert ids(line.decide(0.0, 1).admit) == ["a", "b"]
    with pytest.raises(ValueError, match="must be at least 1"):
        line.resize(0)


@pytest.mark.parametrize("fault", [{"tokens": -1}, {"ready_s": -1.0}, {"ready_s": float("nan")}])
def test_a_size_that_is_none_is_a_bug_in_the_caller(fault: dict[str, float]):
    with pytest.raises(ValueError, match="finite and not negative"):
        former().offer(waiting("a", **fault), 0)
