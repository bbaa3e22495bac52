"""One load, answered in different ways: one by one, in static batches, or joined at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtests.bench.batching.load import Ask
from loadtests.bench.engine_process import Spent
from services.contracts.generate import GenerateRequest
from services.core.batcher import BatchFormer, Batching, Fire, Waiting
from services.worker.engine import Engine, Sequence

if TYPE_CHECKING:
    from loadtests.bench.batching.subject import Subject

Tokens = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    tokens: Tokens
    spent: Spent
    steps: list[tuple[float, int]] = field(default_factory=list)
    """(seconds from the start to the end, sequences) of each step."""
    held_tokens: int = 0
    """The maximum of tokens in memory at once, whole pages and padding included."""

    @property
    def useful_tokens_per_s(self) -> float:
        """Requested tokens a second; rows that only continue for the others' sake do not count."""
        return sum(map(len, self.tokens)) / self.spent.wall_s

    def equal_to(self, other: Tokens) -> int:
        return sum(mine == theirs for mine, theirs in zip(self.tokens, other, strict=True))


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    answer: Callable[[list[Ask]], Run]


def one_by_one(subject: Subject) -> Way:
    return Way("one by one, `generate`", lambda asked: _generated(subject, asked, 1))


def padded(subject: Subject, slots: int) -> Way:
    return Way(f"static batches of {slots}, `generate`", lambda asked: _generated(subject, asked, slots))


def stepped(name: str, engine: Engine, batching: Batching) -> Way:
    return Way(name, lambda asked: _stepped(engine, asked, batching))


def timed(work: Callable[[], Tokens]) -> tuple[Tokens, Spent]:
    wall, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, Spent(time.perf_counter() - wall, time.process_time() - cpu)


def request(ask: Ask) -> GenerateRequest:
    """A greedy request of exactly its length, whatever the model says."""
    return GenerateRequest(
        id=f"ask-{ask.number}", tenant="bench", deadline_ms=600_000, max_tokens=ask.length,
        prompt=" ".join(map(str, ask.prompt)), temperature=0.0, ignore_eos=True,
    )  # fmt: skip


def _generated(subject: Subject, asked: list[Ask], slots: int) -> Run:
    def work() -> Tokens:
        return [answer for batch in _batches(asked, slots) for answer in subject.generate(batch)]

    tokens, spent = timed(work)
    return Run(tokens, spent, held_tokens=max(_padded_tokens(batch) for batch in _batches(asked, slots)))


def _batches(asked: list[Ask], slots: int) -> list[list[Ask]]:
    return [asked[start : start + slots] for start in range(0, len(asked), slots)]


def _padded_tokens(batch: list[Ask]) -> int:
    return len(batch) * (max(len(ask.prompt) for ask in batch) + max(ask.length for ask in batch))


def _stepped(engine: Engine, asked: list[Ask], batching: Batching) -> Run:
    """Runs the worker's own batch former. Its clock stands still, so that no request waits for others."""
    steps: list[tuple[float, int]] = []
    usage = [0.0]

    def work() -> Tokens:
        began = time.perf_counter()
        answers: dict[Sequence, list[int]] = {}
        scheduler: BatchFormer[Sequence] = BatchFormer(batching, slots=engine.slots, queue_size=len(asked))
        for ask in asked:
            sequence = engine.prepare(request(ask))
            answers[sequence] = []
            scheduler.offer(Waiting(sequence.id, 0.0, 600.0, sequence), running=0)
        while len(scheduler) or engine.running:
            decision = scheduler.decide(0.0, engine.running)
            if isinstance(decision, Fire):
                for waiting in decision.admit:
                    engine.admit(waiting.item)
            step = engine.step()
            for sequence, text in step.tokens:
                answers[sequence].append(int(text))
            usage.append(engine.kv_usage)
            steps.append((time.perf_counter() - began, step.batch_size))
        return [tuple(answer) for answer in answers.values()]

    tokens, spent = timed(work)
    return Run(tokens, spent, steps, round(max(usage) * engine.kv_tokens))
