"""The simulated engine's faults: each happens when the plan says so, and never without one."""

from __future__ import annotations

import asyncio
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.generate import GenerateRequest
from services.worker.engine import Step
from services.worker.engines.faults import FaultPlan, Faults
from services.worker.engines.simulated import LatencyModel, SimulatedEngine

STEP_S = 0.02


class Died(Exception):
    """Instead of the end of the process."""


def die() -> None:
    raise Died


def engine(plan: FaultPlan, chunk_tokens: int = 64) -> SimulatedEngine:
    chance = random.Random(1)
    return SimulatedEngine(
        model="m", slots=4, kv_tokens=4096, latency=LatencyModel(20, 0, 0), chance=chance,
        prefill_chunk_tokens=chunk_tokens, faults=Faults(plan, chance=chance, die=die),
    )  # fmt: skip


def admit(sim: SimulatedEngine, id: str = "a", prompt: str = "one two", max_tokens: int = 10) -> None:
    request = GenerateRequest(id, "t", 60_000, max_tokens, prompt=prompt, ignore_eos=True)
    sim.admit(sim.prepare(request))


def run_out(sim: SimulatedEngine) -> list[Step]:
    steps = []
    while sim.running:
        steps.append(sim.step())
    return steps


def test_without_a_plan_nothing_goes_wrong():
    sim = engine(FaultPlan())
    for number in range(20):
        admit(sim, str(number), "a poisoned prompt")
        assert {step.duration_s for step in run_out(sim)} == {STEP_S}
    assert not any(sim.faults.garbage_now() for _ in range(1000))


def test_a_slow_engine_takes_so_many_times_as_long_and_says_the_same():
    sim, slow = engine(FaultPlan()), engine(FaultPlan(slow_factor=3))
    for one in (sim, slow):
        admit(one)
    usual, slowed = run_out(sim), run_out(slow)
    assert {step.duration_s for step in slowed} == {3 * STEP_S}
    assert [[text for _, text in step.tokens] for step in slowed] == [[t for _, t in step.tokens] for step in usual]


def test_a_step_hangs_after_so_many_tokens_and_again_after_as_many():
    sim = engine(FaultPlan(hang_after_tokens=3))
    admit(sim, max_tokens=9)
    hung = [math.isinf(step.duration_s) for step in run_out(sim)]
    assert hung == [False, False, False, True, False, False, True, False, False]


def test_tokens_of_all_answers_count_towards_the_hang():
    sim = engine(FaultPlan(hang_after_tokens=3))
    for id in "abc":
        admit(sim, id)
    assert [math.isinf(sim.step().duration_s) for _ in range(2)] == [False, True]


def test_a_step_that_hangs_is_waited_for_until_somebody_gives_up():
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(math.inf), 0.01)

    asyncio.run(scenario())


def test_it_dies_in_the_step_after_so_many_answers():
    sim = engine(FaultPlan(die_after_answers=2))
    admit(sim, "a", max_tokens=1)
    run_out(sim)
    admit(sim, "b", max_tokens=2)
    run_out(sim)
    admit(sim, "c")
    with pytest.raises(Died):
        sim.step()


def test_poison_kills_once_its_prompt_is_read_and_not_before():
    sim = engine(FaultPlan(poison="belladonna"), chunk_tokens=4)
    admit(sim, "healthy", "one two three")
    run_out(sim)
    admit(sim, "poisoned", "two drops of belladonna in the water of the lock")
    assert sim.step().prefill_tokens == sim.step().prefill_tokens == 4
    with pytest.raises(Died):
        run_out(sim)


def test_poison_that_is_dropped_in_time_kills_nobody():
    sim = engine(FaultPlan(poison="belladonna"), chunk_tokens=2)
    request = GenerateRequest("a", "t", 60_000, 5, prompt="two drops of belladonna in the water of the lock")
    sequence = sim.prepare(request)
    sim.admit(sequence)
    sim.step()
    sim.drop(sequence)
    admit(sim, "b")
    assert len(run_out(sim)) == 10


def test_so_many_of_the_answers_are_garbage():
    faults = Faults(FaultPlan(garbage_share=0.25), chance=random.Random(1))
    assert 200 < sum(faults.garbage_now() for _ in range(1000)) < 300
    faults.replace(FaultPlan(garbage_share=1))
    assert all(faults.garbage_now() for _ in range(1000))


def test_a_new_plan_counts_from_when_it_came():
    sim = engine(FaultPlan(die_after_answers=3, hang_after_tokens=3))
    for id in "ab":
        admit(sim, id, max_tokens=1)
        run_out(sim)
    sim.faults.replace(FaultPlan(die_after_answers=2, hang_after_tokens=2))
    admit(sim, "c", max_tokens=1)
    admit(sim, "d", max_tokens=2)
    assert [step.duration_s for step in run_out(sim)] == [STEP_S, math.inf]
    sim.faults.replace(FaultPlan())
    admit(sim, "e")
    assert len(run_out(sim)) == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slow_factor", 0.5),
        ("slow_factor", math.nan),
        ("slow_factor", math.inf),
        ("hang_after_tokens", -1),
        ("die_after_answers", -1),
        ("garbage_share", 1.1),
        ("garbage_share", math.nan),
        ("poison", "x" * 2000),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_by_the_name_of_the_field(field: str, value: object):
    with pytest.raises(ValueError, match=f"^{field} must"):
        FaultPlan(**{field: value})


def test_everything_wrong_with_a_plan_is_told_at_once():
    with pytest.raises(ValueError, match=r"slow_factor must .*; garbage_share must"):
        FaultPlan(slow_factor=0, garbage_share=2)


@given(st.integers(1, 20), st.integers(1, 60))
def test_a_hang_comes_exactly_as_often_as_planned(hang_after: int, tokens: int):
    sim = engine(FaultPlan(hang_after_tokens=hang_after))
    admit(sim, max_tokens=tokens)
    hung = sum(math.isinf(step.duration_s) for step in run_out(sim))
    assert hung == (tokens - 1) // hang_after


def test_repr_tells_the_plan_and_how_far_it_has_come():
    faults = Faults(FaultPlan(die_after_answers=3), chance=random.Random(1))
    faults.end_step(tokens=4, answers=1)
    assert "die_after_answers=3" in repr(faults)
    assert repr(faults).endswith("4 tokens and 1 answers so far>")
