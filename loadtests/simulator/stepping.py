"""One worker's engine, step by step: the batch former that every worker uses, before an engine that only costs time.

    step = base + per_sequence * sequences that read or write in it + per_prefill_token * prompt tokens read in it

Where `step_workers` makes a run of equal steps one event, to simulate a fleet for minutes, this takes every step alone
and writes down who was in it: for pictures, and to show what a rule of batching does to each request. It follows the
worker's loop. At each boundary the former says who starts; every step reads at most `chunk_tokens` of prompts, the
earliest deadline first; who has read its prompt writes one token a step, the first in the step that reads the last of
it; whoever leaves is out at the next boundary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.core.batcher import BatchFormer, Fire, Waiting


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs, in milliseconds."""

    base_ms: float
    per_sequence_ms: float
    per_prefill_token_ms: float = 0.0

    def step_s(self, sequences: int, prefill_tokens: int) -> float:
        mean_ms = self.base_ms + self.per_sequence_ms * sequences + self.per_prefill_token_ms * prefill_tokens
        return mean_ms / 1000


@dataclass(eq=False, slots=True)
class Asked:
    """A request: what it asks, and then how it fared."""

    id: str
    at_s: float
    prompt_tokens: int
    answer_tokens: int
    deadline: float = math.inf
    leaves_at_s: float = math.inf
    """Once it runs, that is; nobody here leaves the line."""
    unread_tokens: int = 0
    written_tokens: int = 0
    started_at_s: float | None = None
    ended_at_s: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def latency_s(self) -> float:
        """From its arrival to the end of its answer."""
        assert self.ended_at_s is not None
        return self.ended_at_s - self.at_s


@dataclass(frozen=True, slots=True)
class Turned:
    """A step that was taken: who read how much of a prompt, who wrote a token, and who stood in line meanwhile."""

    began_s: float
    ended_s: float
    reads: dict[str, int]
    writes: tuple[str, ...]
    in_it: tuple[str, ...]
    free_tokens: float
    waiting: int


@dataclass(slots=True)
class Stepping:
    """An engine that turns. `idle_while_queued_s` is how long it stood still with somebody in line."""

    former: BatchFormer[Asked]
    cost: Cost
    chunk_tokens: int = 1_000_000
    memory_tokens: float = math.inf
    running: list[Asked] = field(default_factory=list)
    served: list[Asked] = field(default_factory=list)
    expired: list[Asked] = field(default_factory=list)
    steps: list[Turned] = field(default_factory=list)
    idle_while_queued_s: float = 0.0

    def run(self, asked: Iterable[Asked]) -> None:
        """Until everyone is answered, has expired or has left. None may be beyond the former's bound."""
        coming = deque(sorted(asked, key=lambda one: one.at_s))
        now = 0.0
        while coming or self.running or len(self.former):
            self._arrive(now, coming)
            self._leave(now)
            until = self._start(now)
            if self.running:
                now = self._step(now)
                continue
            if not coming and not len(self.former):
                return  # the last ones in line expired
            woken = min(coming[0].at_s if coming else math.inf, until)
            if not now < woken < math.inf:
                raise RuntimeError(f"{self.former!r} waits at {now} until {woken}")
            if len(self.former):
                self.idle_while_queued_s += woken - now
            now = woken

    @property
    def free_tokens(self) -> float:
        return self.memory_tokens - sum(one.tokens for one in self.running)

    def _arrive(self, now: float, coming: deque[Asked]) -> None:
        while coming and coming[0].at_s <= now:
            one = coming.popleft()
            one.unread_tokens = one.prompt_tokens
            waiting = Waiting(one.id, one.at_s, one.deadline, one, tokens=one.tokens)
            if not self.former.offer(waiting, len(self.running)):
                raise ValueError(f"{one.id} is beyond the bound of {self.former!r}")

    def _leave(self, now: float) -> None:
        for one in [one for one in self.running if min(one.leaves_at_s, one.deadline) <= now]:
            self.running.remove(one)

    def _start(self, now: float) -> float:
        """Let in whom the former says; when it wants to be asked again."""
        decision = self.former.decide(now, len(self.running), self.free_tokens)
        self.expired += [waiting.item for waiting in decision.expired]
        if not isinstance(decision, Fire):
            return math.inf if decision.until is None else decision.until
        for waiting in decision.admit:
            waiting.item.started_at_s = now
            self.running.append(waiting.item)
        return now

    def _step(self, now: float) -> float:
        in_it = tuple(one.id for one in self.running)
        free_tokens = self.free_tokens
        reads = self._read()
        writers = [one for one in self.running if one.unread_tokens == 0]
        ended = now + self.cost.step_s(len(reads.keys() | {one.id for one in writers}), sum(reads.values()))
        for one in writers:
            one.written_tokens += 1
            if one.written_tokens == one.answer_tokens:
                one.ended_at_s = ended
                self.running.remove(one)
                self.served.append(one)
        writes = tuple(one.id for one in writers)
        self.steps.append(Turned(now, ended, reads, writes, in_it, free_tokens, len(self.former)))
        return ended

    def _read(self) -> dict[str, int]:
        """A chunk's worth of prompts."""
        left = self.chunk_tokens
        reads: dict[str, int] = {}
        for one in sorted(self.running, key=lambda one: one.deadline):
            if tokens := min(left, one.unread_tokens):
                one.unread_tokens -= tokens
                left -= tokens
                reads[one.id] = tokens
        return reads
