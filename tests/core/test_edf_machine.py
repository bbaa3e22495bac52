"""Whatever is put in and taken out: the line is sorted, its sums are right, its blocks are short."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.edf import BLOCK, DeadlineQueue
from services.core.request import Request

moments = st.sampled_from([0.0, 1.0, 2.0, 2.5, 3.0, 10.0]) | st.floats(-10, 10)


class LineOfRequests(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.line = DeadlineQueue()
        self.model: list[Request] = []
        self.sequence = 0

    def put(self, deadline: float, charge: float) -> None:
        self.sequence += 1
        request = Request(self.sequence, "a", arrived_at=0.0, deadline=deadline, prompt_tokens=1, max_tokens=1)
        request.sequence, request.charge_tokens = self.sequence, charge
        self.line.add(request)
        self.model.append(request)
        self.model.sort(key=lambda each: (each.deadline, each.sequence))

    @rule(deadline=moments, charge=st.floats(0, 1e6))
    def add(self, deadline: float, charge: float) -> None:
        self.put(deadline, charge)

    @rule(first=moments, step=st.sampled_from([-0.01, 0.0, 0.01]), count=st.integers(BLOCK, 3 * BLOCK))
    def add_many(self, first: float, step: float, count: int) -> None:
        for at in range(count):
            self.put(first + at * step, 1.0 + at % 3)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        self.line.discard(self.model.pop(data.draw(st.integers(0, len(self.model) - 1))))

    @precondition(lambda self: self.model)
    @rule()
    def discard_the_heads_of_blocks(self) -> None:
        for head in [block[0][2] for block in self.line._blocks]:
            self.line.discard(head)
            self.model.remove(head)

    @rule(count=st.integers(1, 3 * BLOCK))
    def serve(self, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            first = self.line.first
            assert first is self.model[0]
            self.line.discard(first)
            del self.model[0]

    @rule(deadline=moments)
    def ask(self, deadline: float) -> None:
        before = sum(each.charge_tokens for each in self.model if each.deadline <= deadline)
        assert self.line.work_before(deadline) == pytest.approx(before, abs=1e-3)

    @invariant()
    def is_sorted_and_complete(self) -> None:
        assert list(self.line) == self.model
        assert len(self.line) == len(self.model)

    @invariant()
    def sums_are_those_of_its_requests(self) -> None:
        assert self.line.work == pytest.approx(sum(each.charge_tokens for each in self.model), abs=1e-3)
        for block, work in zip(self.line._blocks, self.line._sums, strict=True):
            assert work == pytest.approx(sum(entry[2].charge_tokens for entry in block), abs=1e-3)

    @invariant()
    def blocks_are_neither_empty_nor_long(self) -> None:
        assert all(0 < len(block) < 2 * BLOCK for block in self.line._blocks)


TestLineOfRequests = LineOfRequests.TestCase
TestLineOfRequests.settings = settings(max_examples=60, stateful_step_count=20)
