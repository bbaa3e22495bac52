"""A measured figure: what it is, what it should be, and whether it held."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """Without a target it is for the record."""

    name: str
    value: float
    unit: str = ""
    target: float | None = None
    at_least: bool = True
    note: str = ""

    @property
    def held(self) -> bool | None:
        """None where there is no target. A figure that is no number holds nothing."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def shown(self) -> str:
        return told(self.value, self.unit)

    @property
    def wanted(self) -> str:
        return "" if self.target is None else f"{'≥' if self.at_least else '≤'} {told(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        return {None: "", True: "held", False: "**missed**"}[self.held]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "held": self.held}


def at_most(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    return Figure(name, value, unit, target, at_least=False, note=note)


def at_least(name: str, value: float, target: float, unit: str = "", note: str = "") -> Figure:
    return Figure(name, value, unit, target, at_least=True, note=note)


def told(value: float, unit: str) -> str:
    """A value as people write it; a share as a percentage."""
    if unit == "%":
        return f"{value:.2%}".replace("%", " %")
    digits = 0 if unit == "" and float(value).is_integer() else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")
