"""Whatever the order of calls: a model of slots and memory says what must come, and `Watched` looks at each step."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from services.worker.engine import Sequence
from tests.worker.contract.engines import Make, Sizes
from tests.worker.contract.watched import Watched, asking, words

SIZES = Sizes(slots=3, kv_tokens=128, context_tokens=96, prefill_chunk_tokens=8)


class Schedule(RuleBasedStateMachine):
    """Prepare, admit, step and drop, in any order."""

    prepared = Bundle("prepared")

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.watched = Watched(make, SIZES)
        self.admitted: list[Sequence] = []
        self.dropped: list[Sequence] = []

    @rule(
        target=prepared,
        id=st.sampled_from("abc"),
        count=st.integers(1, 24),
        max_tokens=st.integers(1, 16),
        ignore_eos=st.booleans(),
        deadline=st.integers(0, 5),
    )
    def prepare(self, id: str, count: int, max_tokens: int, ignore_eos: bool, deadline: int) -> Sequence:
        sequence = self.watched.engine.prepare(asking(id, words(count), max_tokens, ignore_eos=ignore_eos))
        sequence.deadline = deadline
        return sequence

    @rule(sequence=prepared)
    def admit(self, sequence: Sequence) -> None:
        if sequence in self.admitted:
            return
        if self._fits(sequence):
            self.watched.join(sequence)
            self.admitted.append(sequence)
        else:
            with pytest.raises(RuntimeError):
                self.watched.engine.admit(sequence)

    @precondition(lambda self: self.watched.running)
    @rule()
    def step(self) -> None:
        self.watched.step()

    @rule(sequence=prepared)
    def drop(self, sequence: Sequence) -> None:
        if sequence in self.watched.running:
            self.dropped.append(sequence)
        self.watched.drop(sequence)

    def teardown(self) -> None:
        self.watched.run_out()
        ended, dropped = set(self.watched.ended), set(self.dropped)
        assert not ended & dropped
        assert ended | dropped == set(self.admitted)
        assert self.watched.engine.kv_usage == 0
        self.watched.engine.close()

    def _fits(self, sequence: Sequence) -> bool:
        engine = self.watched.engine
        reserved = sum(one.reserved_tokens for one in self.watched.running)
        return engine.running < engine.slots and reserved + sequence.reserved_tokens <= engine.kv_tokens


def test_any_schedule_keeps_the_contract(make: Make, examples: int):
    chosen = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(lambda: Schedule(make), settings=chosen)
