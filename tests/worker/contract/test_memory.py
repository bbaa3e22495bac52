"""Slots and memory: who may come in, what that costs, and that it is given back."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.contracts.generate import Message
from services.runtime.errors import BadInput
from services.worker.engine import Sequence
from tests.worker.contract.conftest import Watch
from tests.worker.contract.watched import Watched, asking, words


def test_memory_is_empty_then_holds_what_was_read_and_written_then_is_empty(watch: Watch):
    watched = watch(prefill_chunk_tokens=4)
    sequence = watched.admit(asking(prompt=words(60), max_tokens=60))
    seen = [watched.engine.kv_usage]
    while watched.running:
        watched.step()
        seen.append(watched.engine.kv_usage)
    assert seen[0] == seen[-1] == 0
    assert seen[:-1] == sorted(seen[:-1])
    most = sequence.reserved_tokens / watched.engine.kv_tokens
    assert 0.9 * most <= seen[-2] <= 1.1 * most  # memory may be given out in pages


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": words(2000), "max_tokens": 1}, "prompt"),
        ({"prompt": "x" * 2_000_000, "max_tokens": 1}, "prompt"),
        ({"prompt": None, "messages": [Message("user", words(2000))], "max_tokens": 1}, "messages"),
        ({"prompt": words(3), "max_tokens": 100_000}, "max_tokens"),
        ({"prompt": None, "messages": [Message("user", words(3))], "max_tokens": 100_000}, "max_tokens"),
    ],
    ids=["long prompt", "absurd prompt", "long chat", "long answer", "long answer to a chat"],
)
def test_what_can_never_fit_is_refused_by_the_name_of_its_field(watch: Watch, fields: dict[str, object], named: str):
    with pytest.raises(BadInput) as refusal:
        watch().engine.prepare(asking(**fields))
    assert (refusal.value.param, refusal.value.code) == (named, "context_length_exceeded")


def test_a_sequence_may_fill_its_context_to_the_last_token_and_no_further(watch: Watch):
    watched = watch(prefill_chunk_tokens=64)
    most = watched.engine.context_tokens - watched.engine.prepare(asking(prompt=words(40))).prompt_tokens
    sequence = watched.admit(asking(prompt=words(40), max_tokens=most))
    assert sequence.reserved_tokens == watched.engine.context_tokens
    watched.run_out()
    assert sequence.completion_tokens == most
    with pytest.raises(BadInput, match="context"):
        watched.engine.prepare(asking(prompt=words(40), max_tokens=most + 1))


def test_without_a_limit_an_answer_may_fill_its_context_and_no_more_than_its_deadline_can_allow(watch: Watch):
    watched = watch(prefill_chunk_tokens=64)
    engine = watched.engine
    room = engine.context_tokens - engine.prepare(asking(prompt=words(40))).prompt_tokens
    patient = engine.prepare(asking(prompt=words(40), max_tokens=None, deadline_ms=600_000))
    assert patient.reserved_tokens <= engine.context_tokens
    hurried = engine.prepare(asking(prompt=words(40), max_tokens=None, deadline_ms=1))
    step_ms = engine.expected.step_ms
    assert hurried.max_tokens == (max(1, min(room, math.ceil(engine.slots / step_ms))) if step_ms else room)
    sequence = watched.admit(asking("all", words(40), max_tokens=None, deadline_ms=600_000))
    assert sequence.max_tokens == patient.max_tokens
    watched.run_out()
    assert sequence.completion_tokens == patient.max_tokens


def test_sequences_that_fill_the_memory_to_the_last_token_all_run_to_their_end(watch: Watch):
    watched = watch(slots=4, kv_tokens=480, context_tokens=400)
    for count in (30, 45, 60):
        watched.admit(asking(str(count), words(count), max_tokens=35))
    prompt = words(20)
    last = watched.engine.prepare(asking(prompt=prompt)).prompt_tokens
    sequence = watched.admit(asking("last", prompt, max_tokens=_free_tokens(watched) - last))
    assert _free_tokens(watched) == 0
    watched.run_out()
    assert sequence.completion_tokens == sequence.request.max_tokens


def test_without_a_free_slot_nobody_is_admitted_and_nothing_changes(watch: Watch):
    watched = watch(slots=2)
    first, _ = watched.admit(asking("a", max_tokens=9)), watched.admit(asking("b", max_tokens=3))
    late = watched.engine.prepare(asking("c"))
    _refused(watched, late)
    watched.run_out()
    watched.join(late)
    watched.run_out()
    assert (first.completion_tokens, late.completion_tokens) == (9, 8)


def test_without_memory_nobody_is_admitted_and_nothing_changes(watch: Watch):
    watched = watch(kv_tokens=500, context_tokens=400)
    first = watched.admit(asking("a", words(20), max_tokens=300))
    prompt_tokens = watched.engine.prepare(asking(prompt=words(9))).prompt_tokens
    late = watched.engine.prepare(asking("b", words(9), max_tokens=_free_tokens(watched) - prompt_tokens + 1))
    _refused(watched, late)
    watched.step()
    _refused(watched, late)
    watched.drop(first)
    watched.join(late)
    watched.run_out()
    assert late.completion_tokens == late.request.max_tokens


def test_preparing_changes_nothing(watch: Watch):
    watched = watch(slots=1)
    sequence = watched.admit(asking("a", max_tokens=12))
    watched.step()
    before = (watched.engine.running, watched.engine.kv_usage, sequence.completion_tokens)
    for number in range(20):
        watched.engine.prepare(asking("a" if number % 2 else str(number), words(50)))
    assert (watched.engine.running, watched.engine.kv_usage, sequence.completion_tokens) == before
    watched.run_out()
    assert sequence.completion_tokens == 12


def test_requests_are_prepared_in_another_thread_while_steps_run(watch: Watch):
    watched = watch()
    expected = [watched.engine.prepare(asking(prompt=words(n, n))).prompt_tokens for n in range(1, 60)]
    sequence = watched.admit(asking(prompt=words(40), max_tokens=100))
    with ThreadPoolExecutor(1) as reader:
        prepared = reader.map(watched.engine.prepare, [asking(prompt=words(n, n)) for n in range(1, 60)])
        watched.run_out()
        assert [one.prompt_tokens for one in prepared] == expected
    assert sequence.completion_tokens == 100


def _free_tokens(watched: Watched) -> int:
    return watched.engine.kv_tokens - sum(one.reserved_tokens for one in watched.running)


def _refused(watched: Watched, sequence: Sequence) -> None:
    before = (watched.engine.running, watched.engine.kv_usage)
    with pytest.raises(RuntimeError):
        watched.engine.admit(sequence)
    assert (watched.engine.running, watched.engine.kv_usage) == before
