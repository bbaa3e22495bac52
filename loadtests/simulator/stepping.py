"""One worker, step by step: the product's batch former and simulated engine on a virtual clock.

Unlike step_workers.py, which makes a run of equal steps one event, this records every step and its requests, for
pictures and tests of batching. The former starts requests at the boundaries of steps; clients leave at them too.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.contracts.generate import GenerateRequest
from services.core.batcher import BatchFormer, Batching, Fire, Waiting
from services.worker.engine import Sequence
from services.worker.engines.simulated import LatencyModel, SimulatedEngine

NO_LIMIT = 10**6


@dataclass(eq=False, slots=True)
class Asked:
    """A request and its times. `prompt_tokens` is at least 1."""

    id: str
    at_s: float
    prompt_tokens: int
    answer_tokens: int
    deadline: float = math.inf
    leaves_at_s: float = math.inf
    """Applies to running requests only."""
    started_at_s: float | None = None
    ended_at_s: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def latency_s(self) -> float:
        assert self.ended_at_s is not None
        return self.ended_at_s - self.at_s

    def request(self) -> GenerateRequest:
        prompt = " ".join(["word"] * self.prompt_tokens)
        return GenerateRequest(
            id=self.id, tenant="t", deadline_ms=60_000, max_tokens=self.answer_tokens, prompt=prompt, ignore_eos=True
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A step: prompt tokens read and completion tokens written by request, and the length of the queue."""

    began_s: float
    ended_s: float
    reads: dict[str, int]
    writes: tuple[str, ...]
    in_it: tuple[str, ...]
    free_tokens: float
    waiting: int


@dataclass(slots=True)
class Stepping:
    """A worker and its history. `idle_while_queued_s`: seconds without a step while requests were queued."""

    former: BatchFormer[Asked]
    engine: SimulatedEngine
    running: dict[Asked, Sequence] = field(default_factory=dict)
    served: list[Asked] = field(default_factory=list)
    expired: list[Asked] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    idle_while_queued_s: float = 0.0

    def run(self, asked: Iterable[Asked]) -> None:
        """Run until every request is answered, expired or gone. Raises ValueError if the former's queue overflows."""
        coming = deque(sorted(asked, key=lambda one: one.at_s))
        now = 0.0
        while coming or self.running or len(self.former):
            self._arrive(now, coming)
            for one in [one for one in self.running if min(one.leaves_at_s, one.deadline) <= now]:
                self.engine.drop(self.running.pop(one))
            until = self._start(now)
            if self.running:
                now = self._step(now)
                continue
            if not coming and not len(self.former):
                return  # the last queued requests expired
            woken = min(coming[0].at_s if coming else math.inf, until)
            if not now < woken < math.inf:
                raise RuntimeError(f"{self.former!r} waits at {now} until {woken}")
            if len(self.former):
                self.idle_while_queued_s += woken - now
            now = woken

    @property
    def free_tokens(self) -> float:
        return self.engine.kv_tokens - sum(one.tokens for one in self.running)

    def _arrive(self, now: float, coming: deque[Asked]) -> None:
        while coming and coming[0].at_s <= now:
            one = coming.popleft()
            if not self.former.offer(
                Waiting(one.id, one.at_s, one.deadline, one, tokens=one.tokens), len(self.running)
            ):
                raise ValueError(f"{one.id} is beyond the bound of {self.former!r}")

    def _start(self, now: float) -> float:
        """Start what the former admits. Returns when to ask it again."""
        decision = self.former.decide(now, len(self.running), self.free_tokens)
        self.expired += [waiting.item for waiting in decision.expired]
        if not isinstance(decision, Fire):
            return math.inf if decision.until is None else decision.until
        for waiting in decision.admit:
            one, sequence = waiting.item, self.engine.prepare(waiting.item.request())
            one.started_at_s, sequence.deadline = now, one.deadline
            self.running[one] = sequence
            self.engine.admit(sequence)
        return now

    def _step(self, now: float) -> float:
        in_it, free_tokens = tuple(one.id for one in self.running), self.free_tokens
        unread = {one.id: sequence.unread_tokens for one, sequence in self.running.items()}
        step = self.engine.step()
        ended = now + step.duration_s
        reads = {one.id: read for one, each in self.running.items() if (read := unread[one.id] - each.unread_tokens)}
        finished = {sequence.id for sequence, _ in step.finished}
        for one in [one for one in self.running if one.id in finished]:
            one.ended_at_s = ended
            self.served.append(one)
            del self.running[one]
        writes = tuple(sequence.id for sequence, _ in step.tokens)
        self.steps.append(Step(now, ended, reads, writes, in_it, free_tokens, len(self.former)))
        return ended


def stepped(
    asked: Iterable[Asked],
    batching: Batching,
    latency: LatencyModel,
    *,
    slots: int,
    queue_size: int,
    window_s: float = 0.0,
    chunk_tokens: int = NO_LIMIT,
    memory_tokens: int = NO_LIMIT,
) -> Stepping:
    engine = SimulatedEngine(
        model="m", slots=slots, kv_tokens=memory_tokens, latency=latency, chance=random.Random(1),
        prefill_chunk_tokens=chunk_tokens,
    )  # fmt: skip
    made = Stepping(BatchFormer(batching, slots=slots, queue_size=queue_size, window_s=window_s), engine)
    made.run(asked)
    return made
