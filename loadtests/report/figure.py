"""A measured figure with its unit, its target, and the verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """One value. `low` and `high`: extremes of repeated runs. The unit `%` marks a share: 0.5 is shown as 50.00 %."""

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
        """Whether the target is held; None without a target. NaN never holds."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> str:
        text = formatted(self.value, self.unit)
        if self.low is None or self.high is None:
            return text
        return f"{text} ({number(self.low)}-{number(self.high)})"

    @property
    def wanted(self) -> str:
        """The target with its sign and unit; empty without a target."""
        return "" if self.target is None else f"{'≥' if self.at_least else '≤'} {formatted(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        """The verdict in Markdown; empty without a target."""
        return {None: "", True: "held", False: "**missed**"}[self.held]

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON, with `held`; without `low` and `high` where neither is set."""
        fields = asdict(self)
        if self.low is None and self.high is None:
            del fields["low"], fields["high"]
        return {**fields, "held": self.held}


def at_most(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    return Figure(name, value, unit, target, at_least=False, note=note)


def at_least(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    return Figure(name, value, unit, target, at_least=True, note=note)


def formatted(value: float, unit: str) -> str:
    """A value with its unit, thousands grouped; a share as a percentage."""
    if unit == "%":
        return f"{value:.2%}".replace("%", " %")
    whole = unit == "" and float(value).is_integer()
    return (f"{value:,.0f}" if whole else number(value)) + (f" {unit}" if unit else "")


def number(value: float) -> str:
    """Three significant digits, thousands grouped."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


class Judged(Protocol):
    @property
    def held(self) -> bool | None: ...


def held(figures: Iterable[Judged]) -> str:
    """`N of M targets held.`; figures without a target do not count."""
    verdicts = [figure.held for figure in figures if figure.held is not None]
    return f"{sum(verdicts)} of {len(verdicts)} targets held."


def summary(figures: Iterable[Figure]) -> str:
    """The line of `held`, and what the figures without a target are."""
    return f"{held(figures)} A figure without a target is for the record."


def median(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Merges repeated runs: each figure's median, its extremes, and the note of the median run."""
    merged = []
    for same in zip(*runs, strict=True):
        ordered = sorted(same, key=lambda figure: figure.value)
        value = statistics.median(figure.value for figure in same)
        middle = ordered[len(ordered) // 2]
        merged.append(replace(middle, value=value, low=ordered[0].value, high=ordered[-1].value))
    return merged
