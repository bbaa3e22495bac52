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


def engine(
    *, slots: int = 4, kv_tokens: int = 4096, latency: LatencyModel | None = None, **sizes: int
) -> SimulatedEngine:
    latency = latency or LatencyModel()
    return SimulatedEngine(
        model="m", slots=slots, kv_tokens=kv_tokens, latency=latency, chance=random.Random(1), **sizes
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


def test_memory_holds_what_has_been_read_and_written():
    sim = engine(kv_tokens=1024, prefill_chunk_tokens=3)
    (sequence,) = admitted(sim, request(prompt="one two three four", max_tokens=10))
    assert sim.kv_usage == 0
    sim.step()
    assert (sim.kv_usage, sequence.unread_tokens) == (3 / 1024, 1)
    sim.step()
    assert (sim.kv_usage, sequence.completion_tokens) == (5 / 1024, 1)
    run_out(sim)
    assert sim.kv_usage == 0


def test_a_context_longer_than_the_memory_is_the_memory():
    assert engine(kv_tokens=1000, context_tokens=2000).context_tokens == 1000
    assert engine(kv_tokens=1000, context_tokens=300).context_tokens == 300


@pytest.mark.parametrize(
    ("latency", "slots", "chunk_tokens"),
    [
        (LatencyModel(20, 0.5, 0.1), 8, 240),
        (LatencyModel(0.3, 0, 0.1), 1, 3),
        (LatencyModel(1, 0, 5), 8, 1),
        (LatencyModel(1, 0, 0), 8, 4096),
    ],
)
def test_of_itself_a_chunk_costs_as_much_as_a_decode_step(latency: LatencyModel, slots: int, chunk_tokens: int):
    assert engine(slots=slots, latency=latency).prefill_chunk_tokens == chunk_tokens


@given(st.integers(1, 16), st.floats(0.1, 50), st.floats(0, 5), st.floats(0.001, 0.1))
def test_a_step_with_reading_lasts_at_most_twice_as_long(slots: int, step: float, each: float, read: float):
    latency = LatencyModel(step, each, read)
    longest = latency.mean_ms(slots, latency.chunk_tokens(slots, 10**9))
    assert longest <= 2 * latency.mean_ms(slots, 0) * (1 + 1e-6)


@pytest.mark.parametrize(
    "sizes", [{"slots": 0}, {"kv_tokens": 0}, {"context_tokens": 0}, {"prefill_chunk_tokens": -1}], ids=str
)
def test_sizes_of_no_engine_are_refused(sizes: dict[str, int]):
    with pytest.raises(ValueError, match="no engine has"):
        engine(**sizes)


def test_a_prompt_of_absurd_length_is_refused_without_being_counted():
    with pytest.raises(BadInput, match="a prompt of 100000 characters"):
        engine(kv_tokens=1024).prepare(request(prompt="x" * 100_000, max_tokens=1))


def test_repr_tells_the_state():
    sim = engine(prefill_chunk_tokens=1)
    admitted(sim, request(prompt="one two"))
    sim.step()
    assert repr(sim) == "<SimulatedEngine 1/4 slots, 1 unread, 1/4096 KV tokens, 102 reserved>"
