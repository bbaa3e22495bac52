"""What an answer is: exact in length, ended once, and the same whatever runs beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.generate import GenerateRequest, Message
from tests.worker.contract.conftest import Watch
from tests.worker.contract.engines import Make, Sizes
from tests.worker.contract.watched import Watched, asking, words

ASKED = asking("asked", words(25, 3), max_tokens=24)
COMPANY = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(0, 2)), max_size=4)


@pytest.mark.parametrize("max_tokens", [1, 2, 17, 200])
def test_ignoring_the_end_gives_exactly_max_tokens(watch: Watch, max_tokens: int):
    watched = watch()
    sequence = watched.admit(asking(max_tokens=max_tokens))
    watched.run_out()
    assert sequence.completion_tokens == len(watched.texts[sequence]) == max_tokens
    assert watched.ended[sequence] == "length"


def test_an_answer_that_may_end_by_itself_ends_once_within_max_tokens(watch: Watch):
    watched = watch()
    sequence = watched.admit(asking(prompt=words(9), max_tokens=200, ignore_eos=False))
    steps = watched.run_out()
    assert [one for step in steps for one, _ in step.finished] == [sequence]
    assert 1 <= sequence.completion_tokens <= 200
    assert watched.said(sequence)


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(make: Make):
    short, long = (_answer(make, asking(prompt=words(12), max_tokens=tokens)) for tokens in (9, 18))
    assert short
    assert long.startswith(short.rstrip("\ufffd"))  # it may have been cut within a character


def test_a_chat_is_answered_like_a_prompt(watch: Watch):
    watched = watch()
    turns = [Message("system", "Be short."), Message("user", words(6))]
    sequence = watched.admit(asking(prompt=None, messages=turns, max_tokens=5))
    watched.run_out()
    assert sequence.prompt_tokens > 6
    assert sequence.completion_tokens == 5


def test_the_same_seed_gives_the_same_answer_when_chance_has_a_say(make: Make):
    asked = asking(prompt=words(8), max_tokens=16, temperature=1.0, top_p=0.9, seed=11)
    assert _answer(make, asked) == _answer(make, asked)


def test_an_answer_is_the_same_whatever_runs_beside_it(make: Make, examples: int):
    alone = _answer(make, ASKED)

    @settings(max_examples=examples, deadline=None)
    @given(COMPANY, st.integers(0, 12), st.sampled_from([3, 8, 32]))
    def in_company(company: list[tuple[int, int, float]], joins_after: int, chunk_tokens: int) -> None:
        watched = Watched(make, Sizes(slots=5, kv_tokens=1536, prefill_chunk_tokens=chunk_tokens))
        for number, (count, tokens, deadline) in enumerate(company):
            watched.admit(asking(str(number), words(count, number), tokens), deadline)
        for _ in range(joins_after):
            if watched.running:
                watched.step()
        sequence = watched.admit(ASKED, deadline=1.0)
        watched.run_out()
        watched.engine.close()
        assert watched.said(sequence) == alone

    in_company()


def _answer(make: Make, request: GenerateRequest) -> str:
    """What an engine says that has nothing else to do."""
    watched = Watched(make, Sizes())
    sequence = watched.admit(request)
    watched.run_out()
    watched.engine.close()
    return watched.said(sequence)
