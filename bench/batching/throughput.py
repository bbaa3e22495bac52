"""Continuous against static batching: the same load, the same weights, greedy tokens compared one by one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.batching import load
from bench.batching.load import Ask
from bench.batching.runs import Run, Way, one_by_one, padded, stepped
from bench.batching.section import Section, Table, middle
from bench.figure import Figure, number
from services.core.batcher import Batching

if TYPE_CHECKING:
    from bench.batching.subject import Subject

SLOTS = 8
MORE_SLOTS = (16, 32)
FEW = 16
TARGET = 2.0
MEDIAN_TOKENS = {"30m": 8}  # a smaller load, so that all takes minutes
USUAL_MEDIAN_TOKENS = 16
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many shared each step, for the picture."""

    subject: str
    static: list[tuple[float, int]]
    continuous: list[tuple[float, int]]


def measure(subject: Subject, requests: int, rounds: int, say: Say, *, widely: bool) -> tuple[Section, Occupancy]:
    """`widely`: with few requests and with more slots, too."""
    asked, few = (_asked(subject, count) for count in (requests, FEW))
    engine = subject.engine(slots=SLOTS, context_tokens=_context(asked))
    ways = [
        padded(subject, SLOTS),
        stepped(f"static batches of {SLOTS}, this engine", engine, Batching.STATIC),
        stepped(f"continuous, {SLOTS} slots", engine, Batching.CONTINUOUS),
    ]
    for way in (one_by_one(subject), *ways):  # warm up
        way.answer(load.asks(SLOTS, median_tokens=2, vocabulary=subject.vocabulary))
    say(f"{requests} requests, {sum(ask.length for ask in asked):,} tokens, one by one")
    alone = one_by_one(subject).answer(asked)
    runs = alternated(ways, asked, rounds, say)
    few_runs = alternated(ways, few, rounds, say) if widely else {}
    if widely:
        check(subject, few_runs, one_by_one(subject).answer(few))
    chunk = engine.prefill_chunk_tokens
    engine.close()
    wider = {name: [run] for name, run in _wider(subject, asked, chunk, say)} if widely else {}
    everything = {one_by_one(subject).name: [alone], **runs, **wider}
    check(subject, everything, alone)
    padded_name, static_name, continuous_name = (way.name for way in ways)
    yardsticks = {"`generate`": padded_name, "this engine": static_name}
    figures = [
        _ratio(f"against {name}, {count} requests", several[continuous_name], several[way], target)
        for several, count, target in ((runs, requests, TARGET), (few_runs, FEW, None))
        if several
        for name, way in yardsticks.items()
    ]
    section = Section(
        f"Continuous against static: {subject.described}",
        f"{requests} requests; answers: {load.spread([ask.length for ask in asked])} tokens; prompts of "
        f"{load.LEAST_PROMPT_TOKENS} to {load.MOST_PROMPT_TOKENS} tokens, read {chunk} a step. Greedy, and every "
        "answer compared with the one that the same model gives alone.",
        [_table(everything, alone, runs[padded_name])],
        figures,
        [_typical(each) for each in (asked, few)[: 1 + widely]],
    )
    static, continuous = (_median_run(runs[name]).steps for name in (static_name, continuous_name))
    return section, Occupancy(subject.described, static, continuous)


def _asked(subject: Subject, count: int) -> list[Ask]:
    median_tokens = MEDIAN_TOKENS.get(subject.size, USUAL_MEDIAN_TOKENS)
    return load.asks(count, median_tokens=median_tokens, vocabulary=subject.vocabulary)


def _wider(subject: Subject, asked: list[Ask], chunk_tokens: int, say: Say) -> Iterator[tuple[str, Run]]:
    """The same load with more slots, for the record."""
    for slots in MORE_SLOTS:
        name = f"continuous, {slots} slots"
        say(name)
        engine = subject.engine(slots=slots, context_tokens=_context(asked), chunk_tokens=chunk_tokens)
        yield name, stepped(name, engine, Batching.CONTINUOUS).answer(asked)
        engine.close()


def alternated(ways: list[Way], asked: list[Ask], rounds: int, say: Say) -> dict[str, list[Run]]:
    """Every way once in each round, in the other direction each time: what else runs here meets all alike."""
    runs: dict[str, list[Run]] = {way.name: [] for way in ways}
    for turn in range(rounds):
        for way in ways if turn % 2 == 0 else reversed(ways):
            run = way.answer(asked)
            runs[way.name].append(run)
            told = f"{run.useful_tokens_per_s:.0f} tokens/s, {run.spent.cpu_s:.1f} processor s"
            say(f"round {turn + 1}: {way.name}: {told}")
    return runs


def check(subject: Subject, runs: dict[str, list[Run]], alone: Run) -> None:
    """This engine's batching must not change an answer. In half precision it may, as the order of sums does."""
    for name, several in runs.items():
        for run in several:
            if subject.exact and run.steps and run.equal_to(alone.tokens) != len(alone.tokens):
                raise AssertionError(f"{name}: {run.equal_to(alone.tokens)} of {len(alone.tokens)} answers are equal")


def _context(asked: list[Ask]) -> int:
    return max(256, max(len(ask.prompt) + ask.length for ask in asked))


def _median_run(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.spent.wall_s)[len(runs) // 2]


def _table(runs: dict[str, list[Run]], alone: Run, yardstick: list[Run]) -> Table:
    head = ("", "useful tokens/s", "of `generate`", "wall s", "processor s", "steps", "in a step", "equal to alone")
    unit = statistics.median(run.useful_tokens_per_s for run in yardstick)
    return Table(head, [_row(name, several, alone, unit) for name, several in runs.items()])


def _row(name: str, runs: list[Run], alone: Run, unit: float) -> tuple[str, ...]:
    equal = min(run.equal_to(alone.tokens) for run in runs)
    steps = runs[0].steps
    return (
        name,
        middle(run.useful_tokens_per_s for run in runs),
        number(statistics.median(run.useful_tokens_per_s for run in runs) / unit),
        middle(run.spent.wall_s for run in runs),
        middle(run.spent.cpu_s for run in runs),
        f"{len(steps):,}" if steps else "",
        number(statistics.mean(count for _, count in steps)) if steps else "",
        f"{equal} of {len(alone.tokens)}",
    )


def _ratio(name: str, ours: list[Run], theirs: list[Run], target: float | None = None) -> Figure:
    """Of useful tokens a second, the load being the same; rounds are compared with themselves."""
    wall = [b.spent.wall_s / a.spent.wall_s for a, b in zip(ours, theirs, strict=True)]
    cpu = statistics.median(b.spent.cpu_s / a.spent.cpu_s for a, b in zip(ours, theirs, strict=True))
    note = f"by processor time {number(cpu)}"
    return Figure(name, statistics.median(wall), "times", target, note=note, low=min(wall), high=max(wall))


def _typical(asked: list[Ask]) -> str:
    """Steps alone, without what a step costs, and over many orders of arrival."""
    wanted = [ask.length for ask in asked]
    this = load.static_steps(wanted, SLOTS) / load.continuous_steps(wanted, SLOTS)
    ratios = load.packing(wanted, SLOTS)
    low, mid, high = (number(load.quantile(ratios, share)) for share in (0.05, 0.5, 0.95))
    return (
        f"Counted in steps alone, {len(asked)} requests in this order need {number(this)} times as many with static "
        f"batches; over 1,000 other orders {mid} times (p5 {low}, p95 {high})."
    )
