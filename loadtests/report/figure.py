"""A measured figure: what it is, what it should be, and whether it held."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """Without a target it is for the record. `low` and `high` are the extremes of repeated runs.

    The unit `%` stands for a share: 0.5 is shown as 50.00 %.
    """

    name: str
    value: float
    unit: str = ""
    target: float | None = None
    at_least: bool = True
    note: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def held(self) -> bool | None:
        """None where there is no target. A figure that is no number holds nothing."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> str:
        """The value with its unit, and the extremes."""
        told_value = told(self.value, self.unit)
        if self.low is None or self.high is None:
            return told_value
        return f"{told_value} ({number(self.low)}-{number(self.high)})"

    @property
    def wanted(self) -> str:
        """The target; empty where there is none."""
        return "" if self.target is None else f"{'≥' if self.at_least else '≤'} {told(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        """For a page; empty where there is no target."""
        return {None: "", True: "held", False: "**missed**"}[self.held]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = asdict(self)
        if self.low is None and self.high is None:
            del fields["low"], fields["high"]
        return {**fields, "held": self.held}


def at_most(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    """A figure that must not be above its target."""
    return Figure(name, value, unit, target, at_least=False, note=note)


def at_least(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    """A figure that must not be below its target."""
    return Figure(name, value, unit, target, at_least=True, note=note)


def told(value: float, unit: str) -> str:
    """A value as people write it; a share as a percentage."""
    if unit == "%":
        return f"{value:.2%}".replace("%", " %")
    whole = unit == "" and float(value).is_integer()
    return (f"{value:,.0f}" if whole else number(value)) + (f" {unit}" if unit else "")


def number(value: float) -> str:
    """Three digits that count, and thousands in groups."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


class Judged(Protocol):
    """What has a target, or none: then `held` is None."""

    @property
    def held(self) -> bool | None: ...


def held(figures: Iterable[Judged]) -> str:
    """How many targets held, of how many."""
    verdicts = [figure.held for figure in figures if figure.held is not None]
    return f"{sum(verdicts)} of {len(verdicts)} targets held."


def summary(figures: Iterable[Figure]) -> str:
    """The same, and what the others are there for."""
    return f"{held(figures)} A figure without a target is for the record."


def median(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Repeated runs of the same figures as one: each figure's median with its extremes, and the median run's note."""
    merged = []
    for same in zip(*runs, strict=True):
        ordered = sorted(same, key=lambda figure: figure.value)
        value = statistics.median(figure.value for figure in same)
        middle = ordered[len(ordered) // 2]
        merged.append(replace(middle, value=value, low=ordered[0].value, high=ordered[-1].value))
    return merged
