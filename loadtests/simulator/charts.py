"""The shapes of plots, as plain numbers: figures.py fills them in, plots.py draws them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """One line; a None breaks it."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of time in which something is different."""

    start: float
    end: float
    label: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line to compare with."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one pair of axes."""

    name: str
    question: str
    note: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    ideal: Curve | None = None
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    loads: tuple[float, ...] = ()
    """Over loads rather than over time: a logarithmic axis with these ticks."""
    times: tuple[float, ...] = ()
    """Over times on the y axis, logarithmic, with these ticks in seconds."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One policy's small chart."""

    policy: str
    curves: tuple[Curve, ...]
    remark: str


@dataclass(frozen=True, slots=True)
class Panels:
    """The same chart for a few policies, side by side, on the same axes."""

    name: str
    question: str
    note: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A policy's share of the workers' time: useful, wasted; the rest was idle."""

    policy: str
    useful: float
    wasted: float


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for every policy."""

    name: str
    question: str
    note: str
    x_label: str
    bars: tuple[Bar, ...]
