"""What a step reads and yields. `Watched.step` holds each to the rules; these cases put them to the test."""

from __future__ import annotations

import pytest

from services.runtime.errors import BadInput
from services.worker.engine import Sequence, Step
from tests.worker.contract.conftest import Watch
from tests.worker.contract.watched import asking, words


def test_each_sequence_gets_one_token_a_step_until_its_answer_is_over(watch: Watch):
    watched = watch()
    lengths = {"a": 3, "b": 6, "c": 4}
    admitted = [watched.admit(asking(id, max_tokens=tokens)) for id, tokens in lengths.items()]
    watched.run_out()
    assert {one.id: len(watched.texts[one]) for one in admitted} == lengths
    assert {one.id: one.completion_tokens for one in admitted} == lengths


def test_the_first_token_comes_with_the_last_of_the_prompt_and_not_before(watch: Watch):
    watched = watch(prefill_chunk_tokens=4)
    sequence = watched.admit(asking(prompt=words(30)))
    reading = [watched.step() for _ in range(-(-sequence.prompt_tokens // 4))]
    assert [len(step.tokens) for step in reading] == [0] * (len(reading) - 1) + [1]
    assert sequence.unread_tokens == 0


@pytest.mark.parametrize("chunk_tokens", [1, 5, 64])
def test_prompts_are_read_whole_and_once_in_chunks(watch: Watch, chunk_tokens: int):
    watched = watch(prefill_chunk_tokens=chunk_tokens)
    admitted = [watched.admit(asking(str(n), words(11 * n + 1, n), max_tokens=2)) for n in range(3)]
    steps = watched.run_out()
    prompts = sum(one.prompt_tokens for one in admitted)
    assert watched.read_tokens == prompts
    assert max(step.prefill_tokens for step in steps) == min(chunk_tokens, prompts)


def test_a_chunk_is_shared_by_the_prompts_that_fit_into_it(watch: Watch):
    watched = watch(prefill_chunk_tokens=64)
    for n in range(3):
        watched.admit(asking(str(n), words(3, n)))
    assert len(watched.step().tokens) == 3


def test_the_earliest_deadline_is_read_first_whoever_came_first(watch: Watch):
    watched = watch()
    admitted = [watched.admit(asking(str(at), words(20, at), max_tokens=40), deadline=at) for at in (30, 10, 20)]
    assert _by_first_token(watched.run_out()) == sorted(admitted, key=lambda one: one.deadline)


def test_a_newcomer_with_an_earlier_deadline_overtakes_a_prompt_that_is_half_read(watch: Watch):
    watched = watch(prefill_chunk_tokens=4)
    slow = watched.admit(asking("slow", words(40)), deadline=100)
    watched.step()
    assert 0 < slow.unread_tokens < slow.prompt_tokens
    urgent = watched.admit(asking("urgent", words(10)), deadline=1)
    assert _by_first_token(watched.run_out()) == [urgent, slow]


def test_a_long_prompt_that_joins_stalls_nobody(watch: Watch):
    watched = watch()
    writing = [watched.admit(asking(id, max_tokens=60)) for id in "ab"]
    while any(one.unread_tokens for one in writing):
        watched.step()
    joining = watched.admit(asking("long", words(150)), deadline=0)
    steps = 0
    while joining.unread_tokens > watched.chunk_tokens:
        assert [sequence for sequence, _ in watched.step().tokens] == writing
        steps += 1
    assert steps > 5


def test_a_sequence_may_join_before_any_step(watch: Watch):
    watched = watch()
    sizes = []
    for id in "abc":
        watched.admit(asking(id, max_tokens=20))
        sizes.append(watched.step().batch_size)
    assert sizes == [1, 2, 3]
    watched.run_out()


def test_the_size_of_a_batch_is_for_how_many_the_step_computed_something(watch: Watch):
    watched = watch(prefill_chunk_tokens=4)
    writing = watched.admit(asking("writing", max_tokens=20))
    while writing.unread_tokens:
        watched.step()
    watched.admit(asking("first", words(30)), deadline=1)
    watched.admit(asking("second", words(30)), deadline=2)
    assert watched.step().batch_size == 2


def test_an_empty_prompt_is_answered_or_refused_but_never_stands_still(watch: Watch):
    watched = watch()
    try:
        sequence = watched.admit(asking(prompt="", max_tokens=3))
    except BadInput:
        return
    watched.run_out()
    assert watched.ended[sequence] == "length"


def test_it_names_itself_its_model_and_its_bounds(watch: Watch):
    engine = watch(slots=2).engine
    assert engine.name
    assert engine.model
    assert engine.slots == 2
    assert engine.expected.step_ms >= 0
    assert engine.expected.prefill_ms_per_token >= 0


def _by_first_token(steps: list[Step]) -> list[Sequence]:
    return list(dict.fromkeys(sequence for step in steps for sequence, _ in step.tokens))
