"""A long prompt joins seven decoding sequences: the stall of the seven, and the delay of the long one.

One step separates two tokens of a sequence, so the time between tokens is the length of a step. It is measured from the
join until the prompt has been read, so that one stalled step does not vanish among thousands, and again after that:
with sdpa over pages every step gathers what all sequences hold, so a small model's steps stay longer with a long
sequence among them, however it was read.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtests.bench.batching import load
from loadtests.bench.batching.load import Ask
from loadtests.bench.batching.runs import request
from loadtests.bench.batching.section import Section, numbers_table
from loadtests.load.figures import quantile_of
from loadtests.report.figure import Figure, at_most, number
from loadtests.report.progress import Say
from services.worker.engine import Engine, Sequence

if TYPE_CHECKING:
    from loadtests.bench.batching.subject import Subject

OTHERS = 7
SHORT_PROMPT_TOKENS = 16
LONG_PROMPT_TOKENS = 1500
SETTLING_STEPS = 10
QUIET_STEPS = 40
TARGET = 2.0


@dataclass(slots=True)
class Seen:
    """Milliseconds between tokens of the others: before the long prompt came, since then, and once it is read."""

    how: str
    before: list[float] = field(default_factory=list)
    since: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)


def measure(subject: Subject, rounds: int, say: Say) -> Section:
    context_tokens = LONG_PROMPT_TOKENS + 512
    automatic = subject.engine(slots=OTHERS + 1, context_tokens=context_tokens)
    at_once = subject.engine(slots=OTHERS + 1, context_tokens=context_tokens, chunk_tokens=LONG_PROMPT_TOKENS)
    chunks, whole = Seen("read in chunks that follow the steps"), Seen("read whole, in one step")
    for turn in range(rounds):
        pairs = [(automatic, chunks), (at_once, whole)]
        for engine, seen in pairs if turn % 2 == 0 else reversed(pairs):
            joined(subject, engine, seen)
            say(f"a long prompt, {seen.how}: first token after {seen.first_token[-1]:.0f} ms")
    for engine in (automatic, at_once):
        engine.close()
    return _section(subject, chunks, whole)


def joined(subject: Subject, engine: Engine, seen: Seen) -> None:
    """One run: seven decode, the long one joins, and all are dropped at the end."""
    chance = random.Random(2)
    others = [
        _admitted(engine, number, load.prompt(SHORT_PROMPT_TOKENS, subject.vocabulary, chance), 480)
        for number in range(OTHERS)
    ]
    while any(sequence.unread_tokens for sequence in others):
        engine.step()
    _steps_ms(engine, SETTLING_STEPS)
    seen.before += _steps_ms(engine, QUIET_STEPS)
    began = time.perf_counter()
    long = _admitted(engine, OTHERS, load.prompt(LONG_PROMPT_TOKENS, subject.vocabulary, chance), 2 * QUIET_STEPS)
    while not long.completion_tokens:
        seen.since += _steps_ms(engine, 1)
    seen.first_token.append((time.perf_counter() - began) * 1000)
    seen.after += _steps_ms(engine, QUIET_STEPS)
    for sequence in (*others, long):
        engine.drop(sequence)


def _admitted(engine: Engine, number: int, prompt: tuple[int, ...], length: int) -> Sequence:
    sequence = engine.prepare(request(Ask(number, prompt, length)))
    engine.admit(sequence)
    return sequence


def _steps_ms(engine: Engine, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - began) * 1000)
    return times


def _section(subject: Subject, chunks: Seen, whole: Seen) -> Section:
    quiet, after = chunks.before + whole.before, chunks.after + whole.after
    quiet_p50, quiet_p99 = quantile_of(quiet, 0.5), quantile_of(quiet, 0.99)
    chunked_p99 = quantile_of(chunks.since, 0.99)
    rows = [
        _row("no long prompt", quiet, []),
        _row(chunks.how, chunks.since, chunks.first_token),
        _row(whole.how, whole.since, whole.first_token),
        _row("after it has been read", after, []),
    ]
    price = quantile_of(chunks.first_token, 0.5) / quantile_of(whole.first_token, 0.5)
    return Section(
        f"A long prompt joins: {subject.described}",
        f"{OTHERS} sequences decode; then one with a prompt of {LONG_PROMPT_TOKENS:,} tokens joins. Milliseconds "
        "between two tokens of the seven, from the join until the prompt has been read.",
        [
            at_most("p99 with chunks over p99 without", chunked_p99 / quiet_p99, TARGET, "times"),
            Figure("p99 with chunks over p50 without", chunked_p99 / quiet_p50, "times"),
            Figure(
                "p99 with chunks over p99 once it is read", chunked_p99 / quantile_of(after, 0.99), "times",
                note="the cost of reading itself",
            ),
            Figure(
                "p99 read whole over p99 without", quantile_of(whole.since, 0.99) / quiet_p99, "times",
                note="one step without tokens for the others",
            ),
            Figure("the long one's first token, chunks over whole", price, "times", note="its delay"),
        ],
        [numbers_table(("", "p50", "p99", "longest", "gaps", "the long one's first token"), rows)],
    )  # fmt: skip


def _row(name: str, gaps: list[float], first_token: list[float]) -> tuple[str, ...]:
    shown = (number(quantile_of(gaps, share)) for share in (0.5, 0.99, 1.0))
    return (name, *shown, f"{len(gaps):,}", number(quantile_of(first_token, 0.5)) if first_token else "")
