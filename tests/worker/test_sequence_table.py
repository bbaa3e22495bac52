"""The worker's own book of who is prepared, who runs, and what its engine has yet to be told."""

from __future__ import annotations

import pytest

from services.contracts.generate import GenerateRequest
from services.worker.engine import Sequence
from services.worker.engine_wire import EngineState, StepResult
from services.worker.sequence_table import SequenceTable

ROOM = {"slots": 2, "kv_tokens": 100}


def step_result(**came: list) -> StepResult:
    lists = {"tokens": [], "reading": [], "finished": [], "lost": []} | came
    return StepResult(
        number=1, duration_s=0.5, batch_size=2, prefill_tokens=3, state=EngineState(0, 0.0, 2, 100), **lists
    )


def asking(id: str, tokens: int) -> GenerateRequest:
    return GenerateRequest(
        id=id, tenant="t", deadline_ms=60_000, max_tokens=tokens, prompt="one two three", stream=False
    )


def added(roster: SequenceTable, handle: int, tokens: int = 4):
    sequence = Sequence(asking(f"r{handle}", tokens), 3, 3)
    roster.add(handle, sequence)
    return sequence


def admitted(roster: SequenceTable, handle: int, tokens: int = 4):
    sequence = added(roster, handle, tokens)
    roster.admit(sequence, **ROOM)
    return sequence


def test_drops_and_admissions_are_told_once_and_in_the_order_of_the_decisions():
    roster = SequenceTable()
    first, second = admitted(roster, 1), admitted(roster, 2)
    second.deadline = 7.5
    assert roster.admits() == [(1, float("inf")), (2, 7.5)]
    assert (roster.drops(), roster.admits()) == ([], [])
    roster.drop(second)
    roster.drop(first)
    assert roster.owes_drops
    assert roster.drops() == [2, 1]
    assert roster.drops() == []
    assert not roster.owes_drops


def test_a_slot_and_memory_are_free_at_once():
    roster = SequenceTable()
    runs, _ = admitted(roster, 1, tokens=87), admitted(roster, 2)
    waits = added(roster, 3, tokens=87)
    with pytest.raises(RuntimeError, match="without a free slot"):
        roster.admit(waits, **ROOM)
    with pytest.raises(RuntimeError, match="without memory for 90"):
        roster.admit(waits, slots=3, kv_tokens=100)
    roster.drop(runs)
    roster.admit(waits, **ROOM)
    assert roster.running == 2


def test_nobody_is_admitted_twice_or_again():
    roster = SequenceTable()
    sequence = admitted(roster, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has not prepared it"):
            roster.admit(sequence, **ROOM)
        roster.drop(sequence)


def test_the_process_is_told_to_forget_only_whom_no_step_would_drop():
    roster = SequenceTable()
    waits, noted, runs = added(roster, 1), admitted(roster, 2), None
    assert roster.drop(waits) == 1
    assert roster.drop(waits) is None
    assert roster.drop(noted) == 2  # no step knew of it
    assert (roster.drops(), roster.admits(), roster.running) == ([], [], 0)
    runs = admitted(roster, 3)
    roster.admits()
    assert roster.drop(runs) is None
    assert roster.drops() == [3]


def test_counts_are_the_engines_own_also_for_one_that_left_during_the_step():
    roster = SequenceTable()
    leaver, stays = admitted(roster, 1), admitted(roster, 2)
    roster.admits()
    roster.drop(leaver)
    step = roster.take(
        step_result(tokens=[(1, "a", 9), (2, "b", 4)], reading=[(1, 0), (2, 0)], finished=[(1, "stop", 10)])
    )
    assert (step.tokens, step.finished, step.lost) == ([(stays, "b")], [], [])
    assert (leaver.completion_tokens, leaver.unread_tokens, stays.completion_tokens) == (10, 0, 4)
    assert roster.drops() == [1]  # it may finish there first: a drop that comes late is ignored


def test_those_who_finish_or_are_lost_give_back_slot_and_memory():
    roster = SequenceTable()
    finishes, is_lost = admitted(roster, 1, 40), admitted(roster, 2, 40)
    roster.admits()
    step = roster.take(step_result(tokens=[(1, "", 40)], finished=[(1, "length", 40)], lost=[(2, "out of memory")]))
    assert (step.finished, step.lost) == ([(finishes, "length")], [(is_lost, "out of memory")])
    assert (step.duration_s, step.batch_size, step.prefill_tokens) == (0.5, 2, 3)
    for sequence in (finishes, is_lost):
        assert roster.drop(sequence) is None
    assert roster.drops() == []
    admitted(roster, 3, 90)


@pytest.mark.parametrize("came", [{"tokens": [(9, "x", 1)]}, {"reading": [(9, 1)]}, {"lost": [(9, "")]}])
def test_a_stranger_is_not_believed(came):
    roster = SequenceTable()
    for dropped in (admitted(roster, 1), admitted(roster, 9)):
        roster.admits()
        roster.drop(dropped)
    roster.drops()  # told: from now on nobody is 9
    with pytest.raises(KeyError):
        roster.take(step_result(**came))


def test_what_is_prepared_is_bounded_and_the_oldest_is_forgotten():
    roster = SequenceTable(max_prepared=2)
    first = added(roster, 1)
    assert roster.surplus() is None
    admitted(roster, 2)
    added(roster, 3)
    assert roster.surplus() is None  # who runs does not count
    added(roster, 4)
    assert roster.surplus() == 1
    assert roster.prepared == 2
    with pytest.raises(RuntimeError, match="has not prepared it"):
        roster.admit(first, slots=9, kv_tokens=1000)
