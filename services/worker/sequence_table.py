"""The worker's record of the sequences in its engine's process.

    prepare -> prepared -> admit -> running -> finished, lost
                  |                    |
                  +------- drop -------+

The process learns of a decision with the next step. So a slot is free as soon as its sequence is dropped, and later
results for that sequence are discarded here.
"""

from __future__ import annotations

from services.worker.engine import Sequence, Step
from services.worker.engine_wire import StepResult

MAX_PREPARED = 4096


class SequenceTable:
    """The sequences of one process, by handle. With more than `max_prepared` prepared, the oldest is forgotten."""

    __slots__ = ("_admits", "_drops", "_known", "_max_prepared", "_prepared", "_reserved_tokens", "_running")

    def __init__(self, max_prepared: int = MAX_PREPARED) -> None:
        self._max_prepared = max_prepared
        self._prepared: dict[Sequence, int] = {}
        self._running: dict[Sequence, int] = {}
        self._known: dict[int, Sequence] = {}  # handles that a step may name: running, and in `_drops`
        self._admits: dict[int, Sequence] = {}  # running here, and in the process from the next step on
        self._drops: list[int] = []  # running in the process until the next step
        self._reserved_tokens = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def prepared(self) -> int:
        return len(self._prepared)

    @property
    def owes_drops(self) -> bool:
        return bool(self._drops)

    def add(self, handle: int, sequence: Sequence) -> None:
        self._prepared[sequence] = handle

    def surplus(self) -> int | None:
        """The handle of a sequence beyond `max_prepared`, which the process should forget; None if there is none."""
        if len(self._prepared) <= self._max_prepared:
            return None
        return self._prepared.pop(next(iter(self._prepared)))

    def admit(self, sequence: Sequence, *, slots: int, kv_tokens: int) -> None:
        """Raises RuntimeError without a free slot, without memory, or for a sequence that is not prepared."""
        if sequence not in self._prepared:
            raise RuntimeError(f"{sequence.id} was admitted to an engine that has not prepared it")
        if len(self._running) >= slots:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without a free slot")
        if sequence.reserved_tokens > kv_tokens - self._reserved_tokens:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without memory for {sequence.reserved_tokens}")
        handle = self._prepared.pop(sequence)
        self._running[sequence] = handle
        self._known[handle] = self._admits[handle] = sequence
        self._reserved_tokens += sequence.reserved_tokens

    def drop(self, sequence: Sequence) -> int | None:
        """The handle, if the process must be sent a `Forget` because no step carries the drop."""
        if sequence in self._prepared:
            return self._prepared.pop(sequence)
        if sequence not in self._running:
            return None
        handle = self._leave(sequence)
        if handle in self._admits:
            del self._admits[handle], self._known[handle]
            return handle
        self._drops.append(handle)
        return None

    def drops(self) -> list[int]:
        """Remove and return the handles to drop. The process does not name them afterwards."""
        drops, self._drops = self._drops, []
        for handle in drops:
            self._known.pop(handle, None)  # unless it has finished meanwhile
        return drops

    def admits(self) -> list[tuple[int, float]]:
        """Remove and return the handles to admit, with their deadlines."""
        admits, self._admits = self._admits, {}
        return [(handle, sequence.deadline) for handle, sequence in admits.items()]

    def take(self, step_result: StepResult) -> Step:
        """The step without sequences that were dropped meanwhile. Raises KeyError for an unknown handle."""
        step = Step(step_result.duration_s, step_result.batch_size, step_result.prefill_tokens)
        for handle, unread_tokens in step_result.reading:
            self._known[handle].unread_tokens = unread_tokens
        for handle, text, completion_tokens in step_result.tokens:
            sequence = self._known[handle]
            sequence.completion_tokens = completion_tokens
            if sequence in self._running:
                step.tokens.append((sequence, text))
        for handle, reason, completion_tokens in step_result.finished:
            sequence = self._known.pop(handle)
            sequence.completion_tokens = completion_tokens
            if sequence in self._running:
                self._leave(sequence)
                step.finished.append((sequence, reason))
        for handle, why in step_result.lost:
            sequence = self._known.pop(handle)
            if sequence in self._running:
                self._leave(sequence)
                step.lost.append((sequence, why))
        return step

    def _leave(self, sequence: Sequence) -> int:
        left = self._reserved_tokens = self._reserved_tokens - sequence.reserved_tokens
        assert left >= 0, f"{left} tokens are left, {sequence.reserved_tokens} were of {sequence.id}: {self!r}"
        return self._running.pop(sequence)

    def __repr__(self) -> str:
        pending = f"{len(self._admits)} to admit, {len(self._drops)} to drop"
        return f"<SequenceTable {self.prepared} prepared, {self.running} running, {pending}>"
