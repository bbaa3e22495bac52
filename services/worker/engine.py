"""What an engine is: something that holds a few sequences and takes one step for all of them at a time.

The protocol is the one that iteration-level batching needs (Orca, OSDI'22). A sequence is admitted before any step,
every step yields at most one token for each running sequence, and a sequence can be dropped at any time. The engine
decides nothing about order, deadlines or clients: that is the batch former's and the shell's.

`step` computes and returns at once. `duration_s` is how long its results take from the moment it was called: the
shell waits that long and only then delivers, so an engine is a plain object that tests step by hand. Whoever is
dropped while the shell waits has its token discarded, and none is computed for it again.

A prompt is read (prefilled) before its first token. `Sequence.unread_tokens` is the part still to be read: an engine
may read it over several steps, in chunks, so that a long prompt does not stall the others, and yields no token for
the sequence until it is 0.
"""

from __future__ import annotations

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

    @property
    def id(self) -> str:
        return self.request.id


@dataclass(frozen=True, slots=True)
class Step:
    """What one step yielded. A finished sequence has left the engine; its last token is among `tokens`."""

    duration_s: float
    batch_size: int
    prefill_tokens: int
    tokens: list[tuple[Sequence, str]] = field(default_factory=list)
    finished: list[tuple[Sequence, FinishReason]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine expects of itself before it has run, for whoever must plan until then. 0.0: it does not know."""

    step_ms: float = 0.0
    """Of a step with every slot taken and no prompt to read."""
    prefill_ms_per_token: float = 0.0


class Engine(Protocol):
    """The contract of every engine. Only `prepare` may raise over a request; `step` raising fails those that run."""

    @property
    def name(self) -> str:
        """Which engine this is: simulated, torch."""

    @property
    def model(self) -> str:
        """The model it serves."""

    @property
    def slots(self) -> int:
        """How many sequences may run at once."""

    @property
    def running(self) -> int:
        """How many sequences run."""

    @property
    def kv_tokens(self) -> int | None:
        """Its memory for prompts and answers in tokens; None where it is not counted so."""

    @property
    def kv_usage(self) -> float:
        """The share of its token memory in use, from 0 to 1."""

    @property
    def expected(self) -> Expected:
        """How fast it takes itself to be."""

    def prepare(self, request: GenerateRequest) -> Sequence:
        """Tokenize and check a request; takes no slot. Raises BadInput for one that can never run."""

    def admit(self, sequence: Sequence) -> None:
        """Give the sequence a slot from the next step on. Raises RuntimeError without a free one."""

    def step(self) -> Step:
        """Compute one step for all running sequences. Only called while some run."""

    def drop(self, sequence: Sequence) -> None:
        """Free the sequence's slot now. One that does not run is ignored: it may just have finished."""
