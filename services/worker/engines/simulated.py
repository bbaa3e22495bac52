"""The default engine: a model's latency without its weights. A step that computes something for n sequences lasts

    (a + b * n + c * prefill_tokens) * (1 + jitter) * time_scale      milliseconds

with a for reading the weights, b for the attention of a sequence and c for the prefill of a token. `calibrate` fits
them to an engine; for transformers' continuous batching the formula holds from 1 to 32 sequences. The default chunk is
(a + b * slots) / c tokens, so that prefill at most doubles a step (Sarathi-Serve, OSDI'24).

The text is a function of the prompt and the seed; temperature and top_p have no effect.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Sequence as Texts
from dataclasses import dataclass

from services.contracts.generate import GenerateRequest
from services.runtime.errors import BadInput
from services.worker.engine import Expected, FinishReason, Memory, Sequence, Step, longest_answer
from services.worker.engines.extractive import answer, prompt_text
from services.worker.engines.faults import Faults
from services.worker.engines.tokenizer import count_tokens, min_tokens, tokenize

DEFAULT_CONTEXT_TOKENS = 32_768
EXACT = 1e-9  # so that 0.3 / 0.1 is 3, not 2.9999999999999996


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The parameters of the formula. `jitter` is the half-width of a uniform relative error."""

    step_ms: float = 20.0
    per_sequence_ms: float = 0.5
    prefill_ms_per_token: float = 0.2
    jitter: float = 0.0
    time_scale: float = 1.0

    def step_s(self, batch_size: int, prefill_tokens: int, chance: random.Random) -> float:
        """The duration of a step in seconds, with jitter."""
        error = chance.uniform(-self.jitter, self.jitter) if self.jitter else 0.0
        return self.mean_ms(batch_size, prefill_tokens) * (1 + error) / 1000

    def mean_ms(self, batch_size: int, prefill_tokens: int) -> float:
        """The duration of a step in milliseconds, without jitter."""
        mean_ms = self.step_ms + self.per_sequence_ms * batch_size + self.prefill_ms_per_token * prefill_tokens
        return mean_ms * self.time_scale

    def chunk_tokens(self, slots: int, max_tokens: int) -> int:
        """How many prompt tokens cost as much as a decode step of `slots` sequences: from 1 to `max_tokens`."""
        decode_ms = self.step_ms + self.per_sequence_ms * slots
        if decode_ms >= max_tokens * self.prefill_ms_per_token:  # prefill may cost nothing
            return max_tokens
        return max(1, int(decode_ms / self.prefill_ms_per_token + EXACT))


class SimulatedEngine:
    """An `Engine`. `prefill_chunk_tokens=0` chooses the chunk by the latency model. Raises ValueError for a size below
    1.
    """

    name = "simulated"

    def __init__(
        self,
        *,
        model: str,
        slots: int,
        kv_tokens: int,
        latency: LatencyModel,
        chance: random.Random,
        context_tokens: int = DEFAULT_CONTEXT_TOKENS,
        prefill_chunk_tokens: int = 0,
        faults: Faults | None = None,
    ) -> None:
        if slots < 1 or kv_tokens < 1 or context_tokens < 1 or prefill_chunk_tokens < 0:
            raise ValueError(
                f"no engine has {slots} slots, {kv_tokens} tokens of memory, a context of {context_tokens} tokens "
                f"and chunks of {prefill_chunk_tokens}"
            )
        self.model = model
        self.slots = slots
        self.kv_tokens = kv_tokens
        self.context_tokens = min(context_tokens, kv_tokens)
        self.prefill_chunk_tokens = prefill_chunk_tokens or latency.chunk_tokens(slots, kv_tokens)
        self.faults = Faults(chance=chance) if faults is None else faults
        self._latency = latency
        self._chance = chance
        self._answers: dict[Sequence, Texts[str]] = {}
        self._unread: list[Sequence] = []  # sequences in prefill, the earliest deadline first
        self._reserved_tokens = 0
        self._held_tokens = 0

    @property
    def running(self) -> int:
        return len(self._answers)

    @property
    def kv_usage(self) -> float:
        return self._held_tokens / self.kv_tokens

    @property
    def memory(self) -> Memory:
        return Memory()  # it counts tokens, and keeps none

    @property
    def expected(self) -> Expected:
        return Expected(
            self._latency.mean_ms(self.slots, 0), self._latency.prefill_ms_per_token * self._latency.time_scale
        )

    def prepare(self, request: GenerateRequest) -> Sequence:
        """Count the prompt's tokens. The answer is computed when the sequence is admitted."""
        field = "messages" if request.prompt is None else "prompt"
        prompt = prompt_text(request)
        if min_tokens(prompt) > self.context_tokens:
            raise self._too_long(f"a prompt of {len(prompt)} characters", field)
        prompt_tokens = count_tokens(prompt)
        if prompt_tokens >= self.context_tokens:
            raise self._too_long(f"a prompt of {prompt_tokens} tokens", field)
        room_tokens = self.context_tokens - prompt_tokens
        max_tokens = longest_answer(request, room_tokens, self.expected.step_ms, self.slots)
        if max_tokens > room_tokens:
            raise self._too_long(f"a prompt of {prompt_tokens} tokens and {max_tokens} more", "max_tokens")
        return Sequence(request, prompt_tokens, unread_tokens=prompt_tokens, max_tokens=max_tokens)

    def admit(self, sequence: Sequence) -> None:
        if sequence in self._answers:
            raise RuntimeError(f"{sequence.id} was admitted twice")
        if len(self._answers) >= self.slots:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without a free slot")
        if sequence.reserved_tokens > self.kv_tokens - self._reserved_tokens:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without memory for {sequence.reserved_tokens}")
        self._answers[sequence] = _answer_tokens(sequence.request)
        self._reserved_tokens += sequence.reserved_tokens
        if sequence.unread_tokens:
            insort(self._unread, sequence, key=_deadline)

    def step(self) -> Step:
        self.faults.begin_step()
        writing = len(self._answers) - len(self._unread)
        prompts, prefill_tokens = self._read()
        batch_size = writing + prompts
        duration_s = self.faults.lasting_s(self._latency.step_s(batch_size, prefill_tokens, self._chance))
        step = Step(duration_s, batch_size, prefill_tokens)
        for sequence, texts in self._answers.items():
            if sequence.unread_tokens:
                continue
            step.tokens.append((sequence, texts[sequence.completion_tokens % len(texts)]))
            sequence.completion_tokens += 1
            reason = _finish_reason(sequence, len(texts))
            if reason is not None:
                step.finished.append((sequence, reason))
        self._held_tokens += prefill_tokens + len(step.tokens)
        assert self._held_tokens <= self._reserved_tokens <= self.kv_tokens, f"more is held than was reserved: {self!r}"
        for sequence, _ in step.finished:
            self.drop(sequence)
        self.faults.end_step(tokens=len(step.tokens), answers=len(step.finished))
        return step

    def drop(self, sequence: Sequence) -> None:
        if self._answers.pop(sequence, None) is None:
            return
        self._reserved_tokens -= sequence.reserved_tokens
        self._held_tokens -= sequence.prompt_tokens - sequence.unread_tokens + sequence.completion_tokens
        assert 0 <= self._held_tokens <= self._reserved_tokens, f"{sequence.id} held more than it had: {self!r}"
        if sequence.unread_tokens:
            self._unread.remove(sequence)

    def close(self) -> None:
        """Nothing to release."""

    def _read(self) -> tuple[int, int]:
        """Prefill one chunk, the earliest deadline first. Returns how many prompts it read, and how many tokens."""
        prompts, left = 0, self.prefill_chunk_tokens
        while left and self._unread:
            sequence = self._unread[0]
            read = min(left, sequence.unread_tokens)
            sequence.unread_tokens -= read
            prompts, left = prompts + 1, left - read
            if not sequence.unread_tokens:
                del self._unread[0]
                self.faults.prompt_read(prompt_text(sequence.request))
        return prompts, self.prefill_chunk_tokens - left

    def _too_long(self, what: str, field: str) -> BadInput:
        limit = f"this worker's context of {self.context_tokens} tokens"
        return BadInput(f"{what} do not fit {limit}", field, code="context_length_exceeded")

    def __repr__(self) -> str:
        memory = f"{self._held_tokens}/{self.kv_tokens} KV tokens, {self._reserved_tokens} reserved"
        return f"<SimulatedEngine {self.running}/{self.slots} slots, {len(self._unread)} unread, {memory}>"


def _deadline(sequence: Sequence) -> float:
    return sequence.deadline


def _answer_tokens(request: GenerateRequest) -> Texts[str]:
    """The natural answer as tokens; with `ignore_eos`, a text to repeat."""
    text = answer(request)
    return tokenize(f"{text}\n" if request.ignore_eos else text)


def _finish_reason(sequence: Sequence, natural_tokens: int) -> FinishReason | None:
    if not sequence.request.ignore_eos and sequence.completion_tokens == natural_tokens:
        return "stop"
    return "length" if sequence.completion_tokens == sequence.max_tokens else None
