"""How long a step takes, by how many are in it and how much of a prompt it reads: what a calibration is fitted to."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

from loadtests.bench.batching import load
from loadtests.bench.batching.load import Ask
from loadtests.bench.batching.runs import request, timed
from loadtests.bench.batching.section import Section, Spent, Table
from loadtests.report.figure import Figure, number
from loadtests.report.progress import Say
from services.worker.engine import Engine, Sequence

if TYPE_CHECKING:
    from loadtests.bench.batching.subject import Subject

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
CHUNKS = (32, 64, 128, 256, 512)
PROMPT_TOKENS = 32
STEPS = 25
WRITING = 8  # beside those chunks
READS = 5
NAMED = (1, 8, 64)


def measure(subject: Subject, say: Say) -> Section:
    context_tokens = max(CHUNKS) + STEPS + 8
    engine = subject.engine(slots=max(SEQUENCES), context_tokens=context_tokens, chunk_tokens=max(CHUNKS))
    say("steps that write")
    writing = {count: decode(subject, engine, count) for count in SEQUENCES}
    say("steps that read")
    alone = {chunk: reading(subject, engine, chunk, 0) for chunk in CHUNKS}
    beside = {chunk: reading(subject, engine, chunk, WRITING) for chunk in CHUNKS}
    engine.close()
    per_sequence_ms, base_ms = statistics.linear_regression(
        list(SEQUENCES), [1000 * spent.wall_s for spent in writing.values()]
    )
    return Section(
        f"A step: {subject.described}",
        f"The median of {STEPS} steps in which n sequences with some {PROMPT_TOKENS + STEPS // 2} tokens each write, "
        f"and of {READS} steps that read a chunk of a prompt, alone and beside {WRITING} that write.",
        [
            Table(
                ("n that write", "step, ms", "processor, ms", "ms a sequence", "tokens/s"),
                [_decode_row(count, spent) for count, spent in writing.items()],
            ),
            Table(
                ("prompt tokens read", "alone, ms", "ms a token", f"beside {WRITING}, ms", "ms a token more"),
                [_read_row(chunk, alone[chunk], beside[chunk], writing[WRITING]) for chunk in CHUNKS],
            ),
        ],
        [
            *(Figure(f"tokens/s of {count}", count / writing[count].wall_s, "tokens/s") for count in NAMED),
            Figure("a step of 64 over a step of 1", writing[64].wall_s / writing[1].wall_s, "times"),
        ],
        [f"As a straight line, a step takes {number(base_ms)} ms and {number(per_sequence_ms)} ms for each sequence."],
    )


def decode(subject: Subject, engine: Engine, count: int) -> Spent:
    """A step in which `count` write."""
    sequences = _writing(subject, engine, count)
    engine.step()
    spent = [timed_step(engine) for _ in range(STEPS)]
    _drop(engine, sequences)
    return _median(spent)


def reading(subject: Subject, engine: Engine, chunk: int, writing: int) -> Spent:
    """A step that reads a whole prompt of this size, beside some that write."""
    sequences = _writing(subject, engine, writing)
    spent = []
    for _ in range(READS):
        reader = _admitted(subject, engine, chunk, 2)
        spent.append(timed_step(engine))
        if reader.unread_tokens:
            raise AssertionError(f"{chunk} tokens were not read in one step")
        engine.drop(reader)
    _drop(engine, sequences)
    return _median(spent)


def timed_step(engine: Engine) -> Spent:
    def work() -> list[tuple[int, ...]]:
        engine.step()
        return []

    return timed(work)[1]


def _writing(subject: Subject, engine: Engine, count: int) -> list[Sequence]:
    sequences = [_admitted(subject, engine, PROMPT_TOKENS, STEPS + 64) for _ in range(count)]
    while any(sequence.unread_tokens for sequence in sequences):
        engine.step()
    return sequences


def _admitted(subject: Subject, engine: Engine, prompt_tokens: int, length: int) -> Sequence:
    prompt = load.prompt(prompt_tokens, subject.vocabulary, random.Random(3))
    sequence = engine.prepare(request(Ask(0, prompt, length)))
    engine.admit(sequence)
    return sequence


def _drop(engine: Engine, sequences: list[Sequence]) -> None:
    for sequence in sequences:
        engine.drop(sequence)


def _median(spent: list[Spent]) -> Spent:
    return Spent(
        statistics.median(each.wall_s for each in spent), statistics.median(each.cpu_s for each in spent)
    )  # fmt: skip


def _decode_row(count: int, spent: Spent) -> tuple[str, ...]:
    wall_ms = 1000 * spent.wall_s
    values = (wall_ms, 1000 * spent.cpu_s, wall_ms / count, count / spent.wall_s)
    return (str(count), *map(number, values))


def _read_row(chunk: int, alone: Spent, beside: Spent, without: Spent) -> tuple[str, ...]:
    alone_ms, beside_ms = 1000 * alone.wall_s, 1000 * beside.wall_s
    values = (alone_ms, alone_ms / chunk, beside_ms, (beside_ms - 1000 * without.wall_s) / chunk)
    return (str(chunk), *map(number, values))
