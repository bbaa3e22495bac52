"""An engine whose every step is held to what is true of any step, and that remembers what it said."""

from __future__ import annotations

import math

from services.contracts.generate import GenerateRequest
from services.worker.engine import FinishReason, Sequence, Step
from tests.worker.contract.engines import Make, Sizes

WORDS = ("river", "lock", "gate", "water", "stone", "level", "mill", "flood", "bank", "fish", "ladder", "sluice")


def words(count: int, salt: int = 0) -> str:
    """A text of so many words; another for another salt."""
    return " ".join(WORDS[(salt + n * (1 + salt % 5)) % len(WORDS)] for n in range(count))


def asking(
    id: str = "a", prompt: str = "one two", max_tokens: int | None = 8, deadline_ms: float = 60_000, **fields: object
) -> GenerateRequest:
    """A request for exactly `max_tokens`, the same tokens each time, unless said otherwise."""
    fields = {"ignore_eos": True, "temperature": 0.0, "seed": 7} | fields
    return GenerateRequest(id=id, tenant="t", deadline_ms=deadline_ms, max_tokens=max_tokens, prompt=prompt, **fields)


class Watched:
    """The contract, step by step."""

    def __init__(self, make: Make, sizes: Sizes) -> None:
        self.engine = make(sizes)
        self.chunk_tokens = sizes.prefill_chunk_tokens
        self.running: list[Sequence] = []
        self.texts: dict[Sequence, list[str]] = {}
        self.ended: dict[Sequence, FinishReason] = {}
        self.read_tokens = 0
        self._left: dict[Sequence, tuple[int, int]] = {}  # those who have gone, and how far they had come
        self._look()

    def admit(self, request: GenerateRequest, deadline: float = math.inf) -> Sequence:
        """Prepare and admit."""
        sequence = self.engine.prepare(request)
        assert (sequence.request, sequence.completion_tokens) == (request, 0)
        assert sequence.unread_tokens == sequence.prompt_tokens
        sequence.deadline = deadline
        self.join(sequence)
        return sequence

    def join(self, sequence: Sequence) -> None:
        """Admit one that is prepared."""
        self.engine.admit(sequence)
        self.running.append(sequence)
        self.texts[sequence] = []
        self._look()

    def drop(self, sequence: Sequence) -> None:
        """Drop any sequence."""
        self.engine.drop(sequence)
        if sequence in self.running:
            self._leave(sequence)
        self._look()

    def step(self) -> Step:
        """One step, with everything that holds for any."""
        before = {one: (one.unread_tokens, one.completion_tokens) for one in self.running}
        step = self.engine.step()
        assert 0 <= step.duration_s < math.inf
        assert step.lost == [], "an engine lost what it had the memory for"
        moved = [one for one, come in before.items() if come != (one.unread_tokens, one.completion_tokens)]
        assert step.batch_size == len(moved)
        self._check_reading(step, {one: unread for one, (unread, _) in before.items()})
        self._check_tokens(step, {one: written for one, (_, written) in before.items()})
        self._check_endings(step)
        for sequence, reason in step.finished:
            self.ended[sequence] = reason
            self._leave(sequence)
        self._look()
        return step

    def run_out(self) -> list[Step]:
        """Steps until nobody runs, no more of them than it can take."""
        unread = sum(one.unread_tokens for one in self.running)
        longest = max((one.max_tokens for one in self.running), default=0)
        steps: list[Step] = []
        while self.running:
            assert len(steps) <= unread + longest, "it does not come to an end"
            steps.append(self.step())
        return steps

    def said(self, sequence: Sequence) -> str:
        """The answer as far as it has come."""
        return "".join(self.texts[sequence])

    def _check_reading(self, step: Step, unread: dict[Sequence, int]) -> None:
        read = {one: unread[one] - one.unread_tokens for one in unread}
        assert all(one.unread_tokens >= 0 and tokens >= 0 for one, tokens in read.items())
        assert sum(read.values()) == step.prefill_tokens <= self.chunk_tokens
        assert step.prefill_tokens > 0 or not any(unread.values()), "prompts wait, and nothing is read"
        left = [one.deadline for one in unread if one.unread_tokens]
        late = [one.deadline for one, tokens in read.items() if tokens]
        assert not left or not late or max(late) <= min(left), "a later deadline was read before an earlier one"
        self.read_tokens += step.prefill_tokens

    def _check_tokens(self, step: Step, written: dict[Sequence, int]) -> None:
        given = [sequence for sequence, _ in step.tokens]
        assert len(set(given)) == len(given), "two tokens for one sequence"
        assert set(given) <= set(written), "a token for a sequence that does not run"
        assert not any(one.unread_tokens for one in given), "a token before its prompt was read"
        for one, count in written.items():
            assert one.completion_tokens == count + (one in given)
        stopped = {sequence for sequence, reason in step.finished if reason == "stop"}
        due = {one for one in written if not one.unread_tokens}
        assert due - set(given) <= stopped, "a sequence whose prompt is read got no token"
        for sequence, text in step.tokens:
            self.texts[sequence].append(text)

    def _check_endings(self, step: Step) -> None:
        over = [sequence for sequence, _ in step.finished]
        assert len(set(over)) == len(over), "one sequence finished twice"
        assert set(over) <= set(self.running), "one that does not run has finished"
        for sequence, reason in step.finished:
            assert reason == "stop" or sequence.completion_tokens == sequence.max_tokens
            assert reason == "length" or not sequence.request.ignore_eos
        for one in self.running:
            assert one in over or one.completion_tokens < one.max_tokens, "it goes on past its max_tokens"

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._left[sequence] = (sequence.unread_tokens, sequence.completion_tokens)

    def _look(self) -> None:
        """What is true between any two calls."""
        engine = self.engine
        assert engine.running == len(self.running) <= engine.slots
        assert 1 < engine.context_tokens <= engine.kv_tokens
        assert 0 <= engine.kv_usage <= 1
        assert min(engine.memory.kv_bytes, engine.memory.gpu_bytes) >= 0
        assert (engine.kv_usage > 0) == any(map(_holds_something, self.running))
        for one, state in self._left.items():
            assert (one.unread_tokens, one.completion_tokens) == state, "work for one that has left"


def _holds_something(sequence: Sequence) -> bool:
    return sequence.unread_tokens < sequence.prompt_tokens or sequence.completion_tokens > 0
