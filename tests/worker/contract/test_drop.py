"""A dropped sequence is gone: its slot, its memory, its tokens, and the work that was left of it."""

from __future__ import annotations

import pytest

from services.worker.engine import Sequence
from tests.worker.contract.conftest import Watch
from tests.worker.contract.watched import Watched, asking, words


@pytest.mark.parametrize("steps", range(9))
def test_dropped_at_any_step_it_frees_its_slot_and_memory_at_once(watch: Watch, steps: int):
    watched = watch(slots=1, kv_tokens=192, context_tokens=192)
    leaving = watched.admit(asking("leaving", words(30), max_tokens=60))
    for _ in range(steps):
        watched.step()
    watched.drop(leaving)
    assert (watched.engine.running, watched.engine.kv_usage) == (0, 0)
    taking = watched.admit(asking("taking", words(30, 1), max_tokens=60))
    watched.run_out()
    assert taking.completion_tokens == 60


@pytest.mark.parametrize("steps", range(9))
def test_no_work_is_done_for_a_dropped_one_and_the_others_go_on(watch: Watch, steps: int):
    watched = watch(slots=2)
    leaving = watched.admit(asking("leaving", words(30)), deadline=1)
    staying = watched.admit(asking("staying", words(10), max_tokens=20), deadline=2)
    for _ in range(steps):
        watched.step()
    read = leaving.prompt_tokens - leaving.unread_tokens
    written = leaving.completion_tokens
    watched.drop(leaving)
    watched.run_out()
    assert watched.read_tokens == read + staying.prompt_tokens
    assert (leaving.prompt_tokens - leaving.unread_tokens, len(watched.texts[leaving])) == (read, written)
    assert len(watched.texts[staying]) == 20


def test_an_answer_is_not_changed_by_one_that_leaves_beside_it(watch: Watch):
    alone, beside = watch(), watch()
    expected = alone.admit(asking("a", words(12), max_tokens=30))
    alone.run_out()
    leaving = beside.admit(asking("leaving", words(20, 1), max_tokens=30))
    sequence = beside.admit(asking("a", words(12), max_tokens=30))
    for _ in range(8):
        beside.step()
    beside.drop(leaving)
    beside.admit(asking("next", words(5, 2), max_tokens=9))
    beside.run_out()
    assert beside.said(sequence) == alone.said(expected)


def test_a_finished_slot_is_free_before_the_next_step(watch: Watch):
    watched = watch(slots=1)
    for id in "abc":
        sequence = watched.admit(asking(id, max_tokens=1))
        watched.run_out()
        assert watched.ended[sequence] == "length"


def test_dropping_one_that_does_not_run_is_ignored(watch: Watch):
    watched = watch()
    staying = watched.admit(asking("staying", max_tokens=9))
    twice, over = watched.admit(asking("twice")), watched.admit(asking("over", max_tokens=1))
    while over not in watched.ended:
        watched.step()
    for stranger in (twice, twice, over, watched.engine.prepare(asking("never")), _same_id(watched, staying)):
        watched.drop(stranger)
    usage = watched.engine.kv_usage
    watched.drop(twice)
    assert (watched.engine.running, watched.engine.kv_usage) == (1, usage)
    watched.run_out()
    assert (watched.engine.kv_usage, staying.completion_tokens) == (0, 9)


def test_the_same_id_may_come_again_and_is_answered_anew(watch: Watch):
    watched = watch(slots=2)
    asked = asking("same", words(12), max_tokens=10)
    whole = watched.admit(asked)
    watched.run_out()
    half = watched.admit(asked)
    for _ in range(5):
        watched.step()
    watched.drop(half)
    again = watched.admit(asked)
    watched.drop(half)
    watched.run_out()
    assert watched.said(again) == watched.said(whole)
    assert again.completion_tokens == 10


def test_many_come_and_go_and_nothing_is_left_of_them(watch: Watch):
    watched = watch(slots=3)
    for round in range(40):
        sequence = watched.admit(asking(str(round), words(1 + round % 17, round), max_tokens=20))
        watched.step()
        if round % 3 == 2:
            watched.drop(watched.running[round % len(watched.running)])
        if len(watched.running) == 3:
            watched.drop(sequence)
    for sequence in list(watched.running):
        watched.drop(sequence)
    assert (watched.engine.running, watched.engine.kv_usage) == (0, 0)


def _same_id(watched: Watched, sequence: Sequence) -> Sequence:
    """Another sequence of the same request: it is told apart by identity, not by id."""
    return watched.engine.prepare(sequence.request)
