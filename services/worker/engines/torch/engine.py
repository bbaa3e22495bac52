"""The engine protocol for a real model: a step is a forward pass over the new tokens of all running sequences.

When device memory runs out, the step is undone, the newest half of the sequences (at least one) is lost, the slots
shrink to the rest, chunks to half, and the others continue. After any other exception in a step the engine is empty and
usable, except after a device failure, which raises `EngineDied`.

An end-of-sequence token ends the answer with `stop`. It counts as a completion token and has no text, as in OpenAI's
API and vLLM. At `max_tokens` the reason is `length`, unless the last token is such a token.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.contracts.generate import GenerateRequest
from services.worker.engine import Expected, FinishReason, Memory, Sequence, Step, longest_answer
from services.worker.engine_executor import EngineDied
from services.worker.engines.torch.paged import CacheExhausted, Computed, PagedBatch, PagedRequest, paged_request
from services.worker.engines.torch.sampling import TokenSampling
from services.worker.engines.torch.steady import SteadySteps
from services.worker.engines.torch.text import Decode, Detokenizer, Prompts

MIN_CHUNK_TOKENS = 16
LOST = "out of memory on this worker"


@dataclass(eq=False, slots=True)
class Prompted(Sequence):
    """A sequence with its prompt's token ids."""

    prompt_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class _Running:
    sequence: Sequence
    request: PagedRequest
    text: Detokenizer


@dataclass(frozen=True, slots=True)
class Limits:
    slots: int
    kv_tokens: int
    context_tokens: int
    prefill_chunk_tokens: int
    kv_bytes: int = 0


class TorchEngine:
    """An `Engine`. Made by `loading.load`."""

    name = "torch"

    def __init__(
        self,
        *,
        model: str,
        batch: PagedBatch,
        prompts: Prompts,
        decode: Decode,
        eos: tuple[int, ...],
        limits: Limits,
        chance: random.Random,
        where: str = "",
        gpu_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.model = model
        self.where = where
        self.slots = limits.slots
        self.kv_tokens = limits.kv_tokens
        self.context_tokens = limits.context_tokens
        self.prefill_chunk_tokens = limits.prefill_chunk_tokens
        self.steady: SteadySteps | None = None  # adapts the chunk, unless the settings fix it
        self.expected = Expected()
        self._batch = batch
        self._prompts = prompts
        self._decode = decode
        self._eos = eos
        self._chance = chance
        self._kv_bytes = limits.kv_bytes
        self._gpu_bytes = gpu_bytes
        self._running: dict[Sequence, _Running] = {}  # in order of admission
        self._reserved_tokens = 0
        self._numbers = itertools.count(1)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        return self._batch.used_share

    @property
    def memory(self) -> Memory:
        return Memory(self._kv_bytes, self._gpu_bytes())

    def prepare(self, request: GenerateRequest) -> Prompted:
        ids = self._prompts.ids(request)
        max_tokens = longest_answer(request, self.context_tokens - len(ids), self.expected.step_ms, self.slots)
        return Prompted(request, len(ids), unread_tokens=len(ids), max_tokens=max_tokens, prompt_ids=tuple(ids))

    def admit(self, sequence: Sequence) -> None:
        if not isinstance(sequence, Prompted):
            raise TypeError(f"{sequence.id} was not prepared by this engine")
        self._check_room(sequence)
        request = paged_request(
            str(next(self._numbers)),
            list(sequence.prompt_ids),
            sequence.max_tokens,
            () if sequence.request.ignore_eos else self._eos,
            sequence.deadline,
            self._sampling(sequence.request),
        )
        self._running[sequence] = _Running(sequence, request, Detokenizer(self._decode))
        self._reserved_tokens += sequence.reserved_tokens
        self._batch.add(request)

    def step(self) -> Step:
        began = time.perf_counter()
        try:
            computed = self._batch.step(self.prefill_chunk_tokens)
        except Exception as error:
            exhausted = isinstance(error, CacheExhausted)
            if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
                raise EngineDied(f"the device failed, and every further operation on it fails too: {error}") from error
            if not exhausted and not is_out_of_memory(error):
                self._drop_all()
                raise
        else:
            return self._as_step(computed, began)
        # outside the handler, whose traceback keeps the step's tensors alive
        return self._given_up(1, began) if exhausted else self._shrunk(began)

    def drop(self, sequence: Sequence) -> None:
        running = self._running.pop(sequence, None)
        if running is not None:
            self._reserved_tokens -= sequence.reserved_tokens
            self._batch.remove(running.request)

    def close(self) -> None:
        self._drop_all()
        del self._batch
        _empty_cache()

    def request_of(self, sequence: Sequence) -> PagedRequest:
        """The transformers request of a running sequence."""
        return self._running[sequence].request

    def _check_room(self, sequence: Sequence) -> None:
        if sequence in self._running:
            raise RuntimeError(f"{sequence.id} was admitted twice")
        if len(self._running) >= self.slots:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without a free slot")
        if sequence.reserved_tokens > self.kv_tokens - self._reserved_tokens:
            raise RuntimeError(f"{sequence.id} was admitted to an engine without memory for {sequence.reserved_tokens}")

    def _sampling(self, request: GenerateRequest) -> TokenSampling:
        seed = self._chance.getrandbits(64) if request.seed is None else request.seed
        return TokenSampling(request.temperature, request.top_p, seed)

    def _as_step(self, computed: Computed, began: float) -> Step:
        texts: dict[str, tuple[int, bool]] = {
            request.request_id: (token, request.finished) for request, token in computed.tokens
        }
        tokens: list[tuple[Sequence, str]] = []
        finished: list[tuple[Sequence, FinishReason]] = []
        for running in self._running.values():
            running.sequence.unread_tokens = running.request.unread_tokens
            text_state = texts.get(running.request.request_id)
            if text_state is None:
                continue
            token, ends = text_state
            stops = token in self._eos and not running.sequence.request.ignore_eos
            tokens.append((running.sequence, _piece(running.text, token, stops=stops, ends=ends)))
            running.sequence.completion_tokens += 1
            if ends:
                finished.append((running.sequence, "stop" if stops else "length"))
        for sequence, _ in finished:
            self.drop(sequence)
        step = Step(time.perf_counter() - began, computed.batch_size, computed.prefill_tokens, tokens, finished)
        if self.steady is not None:
            self.steady.took(step)
            self.prefill_chunk_tokens = self.steady.tokens
        return step

    def _shrunk(self, began: float) -> Step:
        """After running out of memory: lose half of the running sequences, and keep slots and chunks smaller."""
        step = self._given_up((len(self._running) + 1) // 2, began)
        self.slots = max(1, min(self.slots, len(self._running)))
        self.prefill_chunk_tokens = max(MIN_CHUNK_TOKENS, self.prefill_chunk_tokens // 2)
        if self.steady is not None:
            self.steady.max_tokens = self.prefill_chunk_tokens
        _empty_cache()
        return step

    def _given_up(self, count: int, began: float) -> Step:
        batch_size = len(self._running)
        lost = list(self._running)[-count:]
        self._batch.rewind()
        for sequence in lost:
            self.drop(sequence)
        return Step(time.perf_counter() - began, batch_size, 0, lost=[(sequence, LOST) for sequence in lost])

    def _drop_all(self) -> None:
        for sequence in list(self._running):
            self.drop(sequence)

    def __repr__(self) -> str:
        size = f"context {self.context_tokens}, chunks of {self.prefill_chunk_tokens}"
        memory = f"{self._reserved_tokens}/{self.kv_tokens} KV tokens reserved, {self.kv_usage:.0%} used"
        return f"<TorchEngine {self.model} on {self.where}, {self.running}/{self.slots} slots, {size}, {memory}>"


def _piece(text: Detokenizer, token: int, *, stops: bool, ends: bool) -> str:
    piece = "" if stops else text.push(token)
    return piece + text.flush() if ends else piece


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device reported that its memory ran out. Each device has its own error."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    signs = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def _empty_cache() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
