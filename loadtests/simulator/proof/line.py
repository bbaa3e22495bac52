"""A promise: one figure of some cases, its target, and who is judged by it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.simulator.proof.observe import Seen

Runs = Mapping[tuple[str, str, int], Seen]
"""By case, policy and seed."""


@dataclass(frozen=True, slots=True)
class Look:
    """All that was seen of one policy with one seed."""

    runs: Runs
    policy: str
    seed: int

    def __call__(self, case: str, policy: str | None = None) -> Seen | None:
        """One of its runs; or, for a comparison, another policy's with the same seed. None if it was not made."""
        return self.runs.get((case, policy or self.policy, self.seed))


Read = Callable[[Look], float | None]
Read1 = Callable[[Seen], float | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """How a figure is written."""

    name: str
    times: float = 1.0
    digits: int = 2

    def write(self, value: float) -> str:
        shown = f"{value * self.times:,.{self.digits}f}"
        return f"{shown} {self.name}" if self.name else shown


RATIO = Unit("")
PERCENT = Unit("%", 100)
POINTS = Unit("points", 100, 1)
SECONDS = Unit("s")
MICROSECONDS = Unit("µs", 1e6, 1)
COUNT = Unit("", digits=1)
WHOLE = Unit("", digits=0)


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a row. Without a target it is for the record."""

    name: str
    cases: tuple[str, ...]
    read: Read
    unit: Unit = RATIO
    target: float | None = None
    at_least: bool = True
    judged: str = "weir"
    """Whose figure is held against the target."""

    @property
    def wanted(self) -> str:
        if self.target is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.unit.write(self.target)}"

    def holds(self, value: float) -> bool | None:
        if self.target is None:
            return None
        return value >= self.target if self.at_least else value <= self.target

    def worst(self, values: Sequence[float]) -> float:
        return min(values) if self.at_least else max(values)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of promises."""

    number: int
    title: str
    how: str
    """How its figures are computed."""
    lines: Sequence[Line]

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(name for line in self.lines for name in line.cases))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line with its figures: per policy, one a seed (or one a repetition, where time is measured)."""

    line: Line
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    judged_by: Callable[[Sequence[float]], float] | None = None
    """Which of several values counts; the worst by default."""

    def worst(self, policy: str) -> float | None:
        values = self.values.get(policy)
        return self.line.worst(values) if values else None

    def median(self, policy: str) -> float | None:
        values = self.values.get(policy)
        return statistics.median(values) if values else None

    @property
    def figure(self) -> float | None:
        """What is held against the target."""
        values = self.values.get(self.line.judged)
        return (self.judged_by or self.line.worst)(values) if values else None

    @property
    def held(self) -> bool | None:
        """None where there is no target. What could not be measured holds nothing."""
        if self.line.target is None:
            return None
        return self.figure is not None and self.line.holds(self.figure)

    @property
    def verdict(self) -> str:
        return {None: "", True: "held", False: "missed"}[self.held]


def outcome(line: Line, runs: Runs, policies: Sequence[str], seeds: Sequence[int]) -> Outcome:
    """Read the line's figure for every policy and seed."""
    values = {policy: _values(line, runs, policy, seeds) for policy in dict.fromkeys((line.judged, *policies))}
    return Outcome(line, {policy: found for policy, found in values.items() if found})


def _values(line: Line, runs: Runs, policy: str, seeds: Sequence[int]) -> list[float]:
    found = (line.read(Look(runs, policy, seed)) for seed in seeds)
    return [value for value in found if value is not None]


def of(case: str, read: Read1) -> Read:
    """A figure of one case."""

    def figure(look: Look) -> float | None:
        seen = look(case)
        return None if seen is None else read(seen)

    return figure


def largest(cases: Sequence[str], read: Read1) -> Read:
    """The largest of a figure over several cases."""

    def figure(look: Look) -> float | None:
        looked = (look(case) for case in cases)
        values = [read(seen) for seen in looked if seen is not None]
        return max((value for value in values if value is not None), default=None)

    return figure
