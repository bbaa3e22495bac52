"""The engine protocol: an engine holds sequences and computes one step for all of them (Orca, OSDI'22).

A prompt is prefilled first, at most one chunk per step (Sarathi-Serve, OSDI'24), the earliest deadline first; until
`Sequence.unread_tokens` is 0 the sequence yields no token. Then it yields one per step.

The caller keeps the sum of `Sequence.reserved_tokens` within `kv_tokens`; then memory suffices. If a shared device runs
out all the same, the sequence is in `Step.lost`, and `slots` or `kv_tokens` may shrink. See
docs/architecture/mechanisms/batching.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

from services.contracts.generate import GenerateRequest

FinishReason = Literal["stop", "length"]


@dataclass(eq=False, slots=True)
class Sequence:
    """One request as the engine sees it. Compared by identity, because an id may be used again once it is free."""

    request: GenerateRequest
    prompt_tokens: int
    unread_tokens: int
    completion_tokens: int = 0
    deadline: float = math.inf
    """Seconds on the caller's clock. Engines only compare deadlines, to order prefill."""
    max_tokens: int = 0
    """The longest answer; 0 for the request's own limit."""

    def __post_init__(self) -> None:
        if not self.max_tokens:
            assert self.request.max_tokens, f"{self.request.id} has no limit of its answer"
            self.max_tokens = self.request.max_tokens

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def reserved_tokens(self) -> int:
        """The most tokens it may hold: its prompt and its longest answer."""
        return self.prompt_tokens + self.max_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """The results of one step. A finished or lost sequence has left the engine; its last token is in `tokens`."""

    duration_s: float
    """From call to results. A simulated engine computes at once, and its executor waits this long."""
    batch_size: int
    """Sequences that were prefilled or decoded."""
    prefill_tokens: int
    tokens: list[tuple[Sequence, str]] = field(default_factory=list)
    """One token each. The text may be empty: an end-of-sequence token, or a part of a character."""
    finished: list[tuple[Sequence, FinishReason]] = field(default_factory=list)
    lost: list[tuple[Sequence, str]] = field(default_factory=list)
    """Sequences that the engine gave up, and why: out of memory."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The engine's own estimate of its speed, used until steps are measured. 0.0: unknown."""

    step_ms: float = 0.0
    """A step with every slot taken and no prefill."""
    prefill_ms_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What an engine holds, in bytes. 0: it holds none of this kind."""

    kv_bytes: int = 0
    """The KV cache as allocated, used or not."""
    gpu_bytes: int = 0
    """All that its process has reserved on its GPU: weights, KV cache, activations."""


def longest_answer(request: GenerateRequest, room_tokens: int, step_ms: float, slots: int) -> int:
    """The limit of an answer in tokens, at least 1: the request's own, else the most that its deadline can allow.

    `room_tokens` are left in the context. A step of all slots takes at most `slots` times one of a single sequence, so
    no token comes sooner than `step_ms / slots`. 0 for an unknown step: the room.
    """
    if request.max_tokens is not None:
        return request.max_tokens
    in_time = math.ceil(request.deadline_ms * slots / step_ms) if step_ms > 0 else room_tokens
    return max(1, min(room_tokens, in_time))


class Engine(Protocol):
    """The contract of every engine, checked by `tests/worker/contract`.

    Only `prepare` may raise because of a request. If `step` raises, the running sequences fail and the engine stays
    usable.
    """

    @property
    def name(self) -> str:
        """The kind of engine: simulated or torch."""

    @property
    def model(self) -> str:
        """The name of its model."""

    @property
    def slots(self) -> int:
        """How many sequences may run at once. May shrink when the device has less memory than expected."""

    @property
    def running(self) -> int:
        """How many sequences run."""

    @property
    def context_tokens(self) -> int:
        """The most tokens of one prompt and its answer together."""

    @property
    def kv_tokens(self) -> int:
        """KV memory in tokens. Sequences that together reserve no more than this can all run to their end."""

    @property
    def kv_usage(self) -> float:
        """The share of the KV memory in use, from 0 to 1."""

    @property
    def memory(self) -> Memory:
        """The memory that it holds."""

    @property
    def expected(self) -> Expected:
        """The estimate of its speed."""

    def prepare(self, request: GenerateRequest) -> Sequence:
        """Tokenize and check a request. Takes no slot. May be called from another thread while a step runs.

        Raises BadInput if the request can never run here: more than `context_tokens`, or a chat template that fails.
        """

    def admit(self, sequence: Sequence) -> None:
        """Give the sequence a slot from the next step on. Raises RuntimeError without a free slot or free memory."""

    def step(self) -> Step:
        """Compute one step for all running sequences. Called only while at least one runs."""

    def drop(self, sequence: Sequence) -> None:
        """Free the sequence's slot and memory now. No effect on a sequence that does not run."""

    def close(self) -> None:
        """Release everything. Nothing is called afterwards."""
