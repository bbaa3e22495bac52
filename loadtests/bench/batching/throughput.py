"""Continuous against static batching: the same load and weights, with greedy tokens compared one by one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadtests.bench.batching import load
from loadtests.bench.batching.load import Ask
from loadtests.bench.batching.runs import Run, Way, one_by_one, padded, stepped
from loadtests.bench.batching.section import Section, middle, numbers_table
from loadtests.report.figure import Figure, number
from loadtests.report.progress import Say
from services.core.batcher import Batching

if TYPE_CHECKING:
    from loadtests.bench.batching.subject import Subject

SLOTS = 8
MORE_SLOTS = (16, 32)
FEW = 16
TARGET = 2.0
TIE = 1e-4  # of a logit: float32 rounds by a few millionths
MEDIAN_TOKENS = {"30m": 8, "1b": 8}  # a smaller load, so that a run takes minutes
USUAL_MEDIAN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Occupancy:
    subject: str
    static: list[tuple[float, int]]
    continuous: list[tuple[float, int]]


class Ways:
    def __init__(self, subject: Subject, asked: list[Ask], more_slots: Sequence[int]) -> None:
        context_tokens = max(256, max(len(ask.prompt) + ask.length for ask in asked))
        engine = subject.engine(slots=SLOTS, context_tokens=context_tokens)
        self.chunk_tokens = engine.prefill_chunk_tokens
        self.alone = one_by_one(subject)
        self.generate = padded(subject, SLOTS)
        self.static = stepped(f"static batches of {SLOTS}, this engine", engine, Batching.STATIC)
        self.continuous = stepped(f"continuous, {SLOTS} slots", engine, Batching.CONTINUOUS)
        self.wider: list[Way] = []
        self._engines = [engine]
        for slots in more_slots:
            wide = subject.engine(slots=slots, context_tokens=context_tokens, chunk_tokens=self.chunk_tokens)
            self.wider.append(stepped(f"continuous, {slots} slots", wide, Batching.CONTINUOUS))
            self._engines.append(wide)

    @property
    def compared(self) -> list[Way]:
        return [self.generate, self.static, self.continuous]

    def warm_up(self, asked: list[Ask]) -> None:
        for way in (self.alone, *self.compared, *self.wider):
            way.answer(asked)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def measure(subject: Subject, requests: int, rounds: int, say: Say, *, widely: bool) -> tuple[Section, Occupancy]:
    """`widely`: also with few requests and with more slots."""
    asked, few = (_asked(subject, count) for count in (requests, FEW))
    ways = Ways(subject, asked, MORE_SLOTS if widely else ())
    ways.warm_up(load.asks(SLOTS, median_tokens=2, vocabulary=subject.vocabulary))
    say(f"{requests} requests, {sum(ask.length for ask in asked):,} tokens, one by one")
    alone = ways.alone.answer(asked)
    runs = alternated([*ways.compared, *ways.wider], asked, rounds, say)
    check(subject, asked, runs, alone)
    few_runs = alternated(ways.compared, few, rounds, say) if widely else {}
    if widely:
        check(subject, few, few_runs, ways.alone.answer(few))
    ways.close()
    section = Section(
        f"Continuous against static: {subject.described}",
        f"{requests} requests; answers: {load.spread([ask.length for ask in asked])} tokens; prompts of "
        f"{load.MIN_PROMPT_TOKENS} to {load.MAX_PROMPT_TOKENS} tokens, read {ways.chunk_tokens} a step. Greedy, and "
        "every answer compared with the one that the same model gives alone.",
        [*_ratios(ways, runs, requests, TARGET), *(_ratios(ways, few_runs, FEW) if widely else ())],
        [_table({ways.alone.name: [alone], **runs}, alone, runs[ways.generate.name], subject.exact)],
    )
    static, continuous = (_median_run(runs[way.name]).steps for way in (ways.static, ways.continuous))
    return section, Occupancy(subject.described, static, continuous)


def _asked(subject: Subject, count: int) -> list[Ask]:
    median_tokens = MEDIAN_TOKENS.get(subject.size, USUAL_MEDIAN_TOKENS)
    return load.asks(count, median_tokens=median_tokens, vocabulary=subject.vocabulary)


def alternated(ways: list[Way], asked: list[Ask], rounds: int, say: Say) -> dict[str, list[Run]]:
    """Every way once in each round, in reverse order every other round, so that other load affects all alike."""
    runs: dict[str, list[Run]] = {way.name: [] for way in ways}
    for turn in range(rounds):
        for way in ways if turn % 2 == 0 else reversed(ways):
            run = way.answer(asked)
            runs[way.name].append(run)
            result = f"{run.useful_tokens_per_s:.0f} tokens/s, {run.spent.cpu_s:.1f} processor s"
            say(f"round {turn + 1}: {way.name}: {result}")
    return runs


def check(subject: Subject, asked: list[Ask], runs: dict[str, list[Run]], alone: Run) -> None:
    """Raises AssertionError if batching changed a float32 answer, except at a tie, where the order of sums decides."""
    for name, several in runs.items():
        for run in several:
            for ask, ours, theirs in zip(asked, run.tokens, alone.tokens, strict=True):
                if subject.exact and run.steps and (behind := parted_by(subject, ask, ours, theirs)) > TIE:
                    raise AssertionError(f"{name}: answer {ask.number} is another one, by {behind:g} of a logit")


def parted_by(subject: Subject, ask: Ask, ours: tuple[int, ...], theirs: tuple[int, ...]) -> float:
    """How far the first differing token of `ours` is behind that of `theirs`, in the model's logits; 0.0 if equal."""
    if ours == theirs:
        return 0.0
    place = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return math.inf  # one is longer
    return subject.behind(ask.prompt + theirs[:place], ours[place], theirs[place])


def _median_run(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.spent.wall_s)[len(runs) // 2]


def _table(runs: dict[str, list[Run]], alone: Run, yardstick: list[Run], exact: bool) -> Iterator[str]:
    head = (
        "", "useful tokens/s", "of `generate`", "wall s", "processor s", "steps", "in a step", "memory",
        "equal to alone",
    )  # fmt: skip
    unit = statistics.median(run.useful_tokens_per_s for run in yardstick)
    return numbers_table(head, [_row(name, several, alone, unit, exact) for name, several in runs.items()])


def _row(name: str, runs: list[Run], alone: Run, unit: float, exact: bool) -> tuple[str, ...]:
    equal = min(run.equal_to(alone.tokens) for run in runs)
    ties = len(alone.tokens) - equal
    steps = runs[0].steps
    return (
        name,
        middle(run.useful_tokens_per_s for run in runs),
        number(statistics.median(run.useful_tokens_per_s for run in runs) / unit),
        middle(run.spent.wall_s for run in runs),
        middle(run.spent.cpu_s for run in runs),
        f"{len(steps):,}" if steps else "",
        number(statistics.mean(count for _, count in steps)) if steps else "",
        f"{runs[0].held_tokens:,}",
        f"{equal} of {len(alone.tokens)}" + (f", {ties} at a tie" if ties and exact else ""),
    )


def _ratios(ways: Ways, runs: dict[str, list[Run]], requests: int, target: float | None = None) -> Iterator[Figure]:
    ours = runs[ways.continuous.name]
    yield _ratio(f"against `generate`, {requests} requests", ours, runs[ways.generate.name], target)
    yield _ratio(f"against this engine's static, {requests} requests", ours, runs[ways.static.name], target)
    for way in ways.wider:
        if way.name in runs:
            yield _ratio(f"{way.name}, against `generate`", runs[way.name], runs[ways.generate.name])


def _ratio(name: str, ours: list[Run], theirs: list[Run], target: float | None = None) -> Figure:
    wall = [b.spent.wall_s / a.spent.wall_s for a, b in zip(ours, theirs, strict=True)]
    cpu = statistics.median(b.spent.cpu_s / a.spent.cpu_s for a, b in zip(ours, theirs, strict=True))
    note = f"by processor time {number(cpu)}"
    low, high = (min(wall), max(wall)) if len(wall) > 1 else (None, None)
    return Figure(name, statistics.median(wall), "times", target, note=note, low=low, high=high)
