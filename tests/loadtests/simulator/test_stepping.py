"""One worker, step by step: what batching promises about waiting, proven in virtual time with the former it uses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.simulator.pictures.batches import REQUESTS, busy, gathered, latency_ms, pictured
from loadtests.simulator.stepping import Asked, Stepping, stepped
from services.core.batcher import Batching
from services.worker.engines.simulated import LatencyModel

CONTINUOUS, STATIC = Batching.CONTINUOUS, Batching.STATIC


def stepping(asked: list[Asked], batching: Batching = CONTINUOUS, *, slots: int = 16, **more: Any) -> Stepping:
    latency = LatencyModel(step_ms=20, per_sequence_ms=0.5, prefill_ms_per_token=0)
    return stepped(asked, batching, latency, slots=slots, queue_size=len(asked) + 1, **more)


def at_low_load(count: int = 800) -> list[Asked]:
    """A tenth of what an engine without batching could do, answers of 20 tokens."""
    chance = random.Random(7)
    at_s, asked = 0.0, []
    for number in range(count):
        at_s += chance.expovariate(0.1 / (20 * 0.0205))
        asked.append(Asked(f"{number}", at_s, prompt_tokens=1, answer_tokens=20))
    return asked


def test_at_low_load_the_median_is_within_5_percent_of_no_batching():
    alone, together = stepping(at_low_load(), slots=1), stepping(at_low_load())
    assert latency_ms(alone, 0.5) == pytest.approx(20 * 20.5)
    assert latency_ms(together, 0.5) <= 1.05 * latency_ms(alone, 0.5)
    assert latency_ms(together, 0.99) < latency_ms(alone, 0.99)  # nobody waits for another's whole answer


def test_at_low_load_a_window_of_50_ms_costs_the_median_more_than_5_percent():
    alone, windowed = stepping(at_low_load(), slots=1), stepping(at_low_load(), STATIC, window_s=0.05)
    assert latency_ms(windowed, 0.5) > 1.05 * latency_ms(alone, 0.5)


@pytest.mark.parametrize(("load", "at_once_ms", "window_ms"), [
    (0.1, 26, 69), (0.4, 42, 66), (0.7, 55, 72), (0.9, 72, 81),
])  # fmt: skip
def test_a_window_delays_the_median_at_every_load_and_gives_nothing_for_it(load, at_once_ms, window_ms):
    at_once, windowed = gathered(load, 0.0), gathered(load, 50.0)
    assert latency_ms(at_once, 0.5) == pytest.approx(at_once_ms, rel=0.03)
    assert latency_ms(windowed, 0.5) == pytest.approx(window_ms, rel=0.03)
    assert latency_ms(windowed, 0.99) > latency_ms(at_once, 0.99)
    assert len(at_once.served) == len(windowed.served) == REQUESTS
    assert windowed.steps[-1].ended_s > at_once.steps[-1].ended_s - 0.05  # the same work is not done sooner
    assert busy(windowed) < busy(at_once)  # what it does save


def test_an_engine_that_fires_at_once_is_never_idle_while_somebody_waits_and_one_with_a_window_is():
    assert gathered(0.4, 0.0).idle_while_queued_s == 0.0
    assert gathered(0.4, 50.0).idle_while_queued_s > 1.0


REQUEST = st.tuples(st.floats(0, 2), st.integers(1, 60), st.integers(1, 30), st.floats(0.05, 3) | st.just(float("inf")))


@given(
    st.lists(REQUEST, min_size=1, max_size=40), st.integers(1, 6), st.integers(1, 40),
    st.sampled_from([90, 200, 10**6]),
)  # fmt: skip
def test_whatever_arrives_no_engine_is_idle_and_no_slot_is_free_while_the_head_of_the_line_fits(
    arrivals, slots, chunk_tokens, memory_tokens
):
    asked = [
        Asked(f"{n}", at_s, prompt, answer, at_s + slack_s)
        for n, (at_s, prompt, answer, slack_s) in enumerate(arrivals)
    ]
    run = stepping(asked, slots=slots, chunk_tokens=chunk_tokens, memory_tokens=memory_tokens)
    assert run.idle_while_queued_s == 0.0
    for step in run.steps:
        assert len(step.in_it) <= slots
        assert step.free_tokens >= 0
        assert sum(step.reads.values()) <= chunk_tokens
        in_line = [
            one for one in asked
            if one.at_s <= step.began_s < one.deadline and (one.started_at_s is None or one.started_at_s > step.began_s)
        ]  # fmt: skip
        if in_line and len(step.in_it) < slots:
            assert min(in_line, key=lambda one: (one.deadline, one.at_s)).tokens > step.free_tokens
    started = [one for one in asked if one.started_at_s is not None]
    assert len(started) + len(run.expired) == len(asked)
    assert all(one.started_at_s < one.deadline for one in started)


def test_in_the_picture_a_long_prompt_is_read_in_chunks_while_the_others_write():
    reading = [step for step in pictured(CONTINUOUS).steps if "D" in step.reads]
    assert [step.reads["D"] for step in reading] == [16, 16, 12]
    assert all({"A", "C"} <= set(step.writes) for step in reading)


def test_in_the_picture_the_slot_of_one_who_leaves_is_taken_at_the_next_step():
    steps = pictured(CONTINUOUS).steps
    last = max(n for n, step in enumerate(steps) if "C" in step.in_it)
    assert steps[last].began_s < 0.2 <= steps[last].ended_s
    assert "E" in steps[last + 1].in_it
    assert "E" not in steps[last].in_it


def test_in_the_picture_static_batches_leave_slots_empty_while_others_wait_and_end_later():
    static, continuous = pictured(STATIC), pictured(CONTINUOUS)
    assert any(step.waiting and len(step.in_it) < 3 for step in static.steps)
    assert not any(step.waiting and len(step.in_it) < 3 for step in continuous.steps)
    assert static.steps[-1].ended_s > 1.3 * continuous.steps[-1].ended_s


def test_more_than_the_line_holds_is_a_bug_in_the_scenario():
    with pytest.raises(ValueError, match="beyond the bound"):
        stepped([Asked(f"{n}", 0.0, 1, 1) for n in range(3)], CONTINUOUS, LatencyModel(), slots=1, queue_size=1)
