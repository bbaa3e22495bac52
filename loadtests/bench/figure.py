"""A measured figure: what it is, what it should be, and whether it held."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Figure:
    """One figure. Without a target it is for the record; `low` and `high` are the extremes of repeated runs."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = True
    note: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def held(self) -> bool | None:
        """Whether it reached its target; None where there is none. A figure that is not a number holds nothing."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> str:
        if self.low is None or self.high is None:
            return number(self.value)
        return f"{number(self.value)} ({number(self.low)}-{number(self.high)})"

    @property
    def wanted(self) -> str:
        return "" if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:,g}"

    @property
    def verdict(self) -> str:
        return {None: "", True: "held", False: "missed"}[self.held]


def number(value: float) -> str:
    """Three digits that count, and thousands in groups."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def median(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Repeated runs of the same figures as one: each figure's median with its extremes, and the median run's note."""
    merged = []
    for same in zip(*runs, strict=True):
        ordered = sorted(same, key=lambda figure: figure.value)
        value = statistics.median(figure.value for figure in same)
        middle = ordered[len(ordered) // 2]
        merged.append(replace(middle, value=value, low=ordered[0].value, high=ordered[-1].value))
    return merged
