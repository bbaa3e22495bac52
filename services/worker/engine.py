"""What an engine is: something that holds a few sequences and takes one step for all of them at a time.

The protocol is the one that iteration-level batching needs (Orca, OSDI'22). A sequence is admitted before any step,
every step yields at most one token for each running sequence, and a sequence can be dropped between any two steps. The
engine decides nothing about who may run: that is the batch former's and the shell's.

A prompt is read (prefilled) before its first token, over several steps where it is long: each step reads at most a
chunk of prompt tokens, so that a long prompt does not stall those that already write (Sarathi-Serve, OSDI'24).
`Sequence.unread_tokens` is the part still to be read; until it is 0 the sequence yields no token. Where more than one
prompt waits to be read, the earliest deadline is read first.

Memory is counted in tokens, prompt and answer alike. Whoever admits keeps the sum of `Sequence.reserved_tokens` within
`kv_tokens`, and an engine holds whatever keeps to that: it never runs out in the middle of an answer for a reason that
could have been known. Where it does all the same (a device shared with others), the sequence is in `Step.lost`, and
`slots` or `kv_tokens` may shrink: an engine refuses and shrinks, it does not die.

Engines are plain objects, stepped by hand in tests. What lets one run beside an event loop is its host
(`engine_executor`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

from services.contracts.generate import GenerateRequest

FinishReason = Literal["stop", "length"]


@dataclass(eq=False, slots=True)
class Sequence:
    """One request as the engine sees it. Compared by identity: an id may be used again once it is free."""

    request: GenerateRequest
    prompt_tokens: int
    unread_tokens: int
    completion_tokens: int = 0
    deadline: float = math.inf
    """In seconds on the shell's clock. Only its order counts here: which prompt is read first."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def reserved_tokens(self) -> int:
        """What it may come to hold: its prompt and the longest answer it may get."""
        return self.prompt_tokens + self.request.max_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one step yielded. A finished or lost sequence has left the engine; a last token is among `tokens`."""

    duration_s: float
    """From its call to its results. A simulated engine computes at once, and its host waits this long."""
    batch_size: int
    """Sequences for which something was computed."""
    prefill_tokens: int
    tokens: list[tuple[Sequence, str]] = field(default_factory=list)
    """One token each. Its text may be empty: half a character, held back until the other half has come."""
    finished: list[tuple[Sequence, FinishReason]] = field(default_factory=list)
    lost: list[tuple[Sequence, str]] = field(default_factory=list)
    """Sequences the engine could not go on with, and why: out of memory."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine expects of itself before it has run, for whoever must plan until then. 0.0: it does not know."""

    step_ms: float = 0.0
    """Of a step with every slot taken and no prompt to read."""
    prefill_ms_per_token: float = 0.0


class Engine(Protocol):
    """The contract of every engine; `tests/worker/contract` holds each to it.

    Only `prepare` may raise over a request; `step` raising fails those that run, and leaves the engine usable.
    """

    @property
    def name(self) -> str:
        """Which engine this is: simulated, torch."""

    @property
    def model(self) -> str:
        """The model it serves."""

    @property
    def slots(self) -> int:
        """How many sequences may run at once. May shrink when a device turns out smaller than it looked."""

    @property
    def running(self) -> int:
        """How many sequences run."""

    @property
    def context_tokens(self) -> int:
        """The longest prompt and answer together that one sequence may have."""

    @property
    def kv_tokens(self) -> int:
        """Its memory for prompts and answers. Sequences that reserve no more than this together can all be run."""

    @property
    def kv_usage(self) -> float:
        """The share of that memory that holds something now, from 0 to 1."""

    @property
    def expected(self) -> Expected:
        """How fast it takes itself to be."""

    def prepare(self, request: GenerateRequest) -> Sequence:
        """Tokenize and check a request; takes no slot, and may be called while a step runs, from another thread.

        Raises BadInput for one that can never run here: more than `context_tokens` in all, a template that fails.
        """

    def admit(self, sequence: Sequence) -> None:
        """Give the sequence a slot from the next step on. Raises RuntimeError without a free slot or its memory."""

    def step(self) -> Step:
        """Compute one step for all running sequences. Only called while some run."""

    def drop(self, sequence: Sequence) -> None:
        """Free the sequence's slot and memory now. One that does not run is ignored: it may just have finished."""

    def close(self) -> None:
        """Give back what it holds. Nothing is called afterwards."""
