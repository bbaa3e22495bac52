"""The simulated engine: exact tokens, the latency formula, and the three ways an answer ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.generate import GenerateRequest
from services.runtime.errors import BadInput
from services.worker.engine import Sequence, Step
from services.worker.engines.extractive import answer
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.engines.tokenizer import count_tokens, tokenize


def engine(slots: int = 4, kv_tokens: int = 4096, latency: LatencyModel | None = None) -> SimulatedEngine:
    return SimulatedEngine(
        model="m", slots=slots, kv_tokens=kv_tokens, latency=latency or LatencyModel(), chance=random.Random(1)
    )


def request(id: str = "a", prompt: str = "Why is a weir?", max_tokens: int = 100, **fields: object) -> GenerateRequest:
    return GenerateRequest(id=id, tenant="t", deadline_ms=60_000, max_tokens=max_tokens, prompt=prompt, **fields)


def admitted(sim: SimulatedEngine, *requests: GenerateRequest) -> list[Sequence]:
    sequences = [sim.prepare(one) for one in requests]
    for sequence in sequences:
        sim.admit(sequence)
    return sequences


def run_out(sim: SimulatedEngine) -> list[Step]:
    steps = []
    while sim.running:
        steps.append(sim.step())
    return steps


def text_of(steps: list[Step], sequence: Sequence) -> str:
    return "".join(text for step in steps for one, text in step.tokens if one is sequence)


def test_an_answer_that_fits_ends_by_itself_and_is_whole():
    sim = engine()
    (sequence,) = admitted(sim, request())
    steps = run_out(sim)
    assert text_of(steps, sequence) == answer(request())
    assert steps[-1].finished == [(sequence, "stop")]
    assert sequence.completion_tokens == count_tokens(answer(request())) == len(steps)


def test_an_answer_is_cut_at_max_tokens():
    sim = engine()
    (sequence,) = admitted(sim, request(max_tokens=5))
    steps = run_out(sim)
    assert text_of(steps, sequence) == "".join(tokenize(answer(request()))[:5])
    assert steps[-1].finished == [(sequence, "length")]


@given(st.integers(1, 400))
def test_ignoring_the_end_gives_exactly_max_tokens(max_tokens: int):
    sim = engine()
    (sequence,) = admitted(sim, request(max_tokens=max_tokens, ignore_eos=True))
    steps = run_out(sim)
    assert sequence.completion_tokens == len(steps) == max_tokens
    assert steps[-1].finished == [(sequence, "length")]
    assert text_of(steps, sequence).startswith(answer(request())[: max_tokens // 2])


def test_a_step_lasts_what_the_formula_says():
    sim = engine(latency=LatencyModel(20, 0.5, 0.1, time_scale=0.1))
    first, second = admitted(sim, request("a"), request("b"))
    step = sim.step()
    read = first.prompt_tokens + second.prompt_tokens
    assert (step.batch_size, step.prefill_tokens) == (2, read)
    assert step.duration_s == pytest.approx((20 + 2 * 0.5 + read * 0.1) * 0.1 / 1000)
    assert sim.step().duration_s == pytest.approx((20 + 2 * 0.5) * 0.1 / 1000)


def test_jitter_stays_within_its_share_and_repeats_with_its_seed():
    def durations() -> list[float]:
        sim = engine(latency=LatencyModel(20, 0, 0, jitter=0.1))
        admitted(sim, request(max_tokens=50, ignore_eos=True))
        return [step.duration_s for step in run_out(sim)]

    first = durations()
    assert first == durations()
    assert 0.018 <= min(first) < 0.0195 < 0.0205 < max(first) <= 0.022


def test_a_dropped_sequence_gets_no_token_and_its_slot_and_memory_are_free():
    sim = engine(slots=2)
    one, other = admitted(sim, request("a"), request("b"))
    sim.step()
    sim.drop(one)
    assert sim.running == 1
    assert [sequence for sequence, _ in sim.step().tokens] == [other]
    assert one.completion_tokens == 1
    sim.drop(other)
    sim.drop(other)
    assert sim.kv_usage == 0


def test_memory_counts_prompt_and_answer_and_is_empty_in_the_end():
    sim = engine(kv_tokens=1024)
    (sequence,) = admitted(sim, request(max_tokens=10))
    sim.step()
    sim.step()
    assert sim.kv_usage == (sequence.prompt_tokens + 2) / 1024
    run_out(sim)
    assert sim.kv_usage == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "field"),
    [("word " * 300, 1, "prompt"), ("x" * 100_000, 1, "prompt"), ("word " * 200, 100, "max_tokens")],
)
def test_what_can_never_fit_is_refused_before_it_waits(prompt: str, max_tokens: int, field: str):
    with pytest.raises(BadInput) as refusal:
        engine(slots=4, kv_tokens=1024).prepare(request(prompt=prompt, max_tokens=max_tokens))
    assert (refusal.value.param, refusal.value.code) == (field, "context_length_exceeded")


def test_full_slots_at_their_full_context_never_exceed_the_memory():
    sim = engine(slots=4, kv_tokens=1024)
    prompts = [request(str(n), prompt="word " * 100, max_tokens=155, ignore_eos=True) for n in range(4)]
    admitted(sim, *prompts)
    while sim.running:
        sim.step()
        assert sim.kv_usage <= 1


def test_admitting_beyond_the_slots_is_a_bug_in_the_caller():
    sim = engine(slots=1)
    admitted(sim, request("a"))
    with pytest.raises(RuntimeError, match="free slot"):
        admitted(sim, request("b"))


def test_repr_tells_the_state():
    sim = engine()
    admitted(sim, request(prompt="one two"))
    assert repr(sim) == "<SimulatedEngine 1/4 slots, 2/4096 KV tokens>"
