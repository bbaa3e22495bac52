"""What a dashboard is made of: rows of panels, each a question with the queries that answer it.

Plain data. How it becomes Grafana's JSON is decided once, in `model.py`; only what differs between panels is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GREEN, YELLOW, RED = "green", "yellow", "red"
DOWN_OR_UP = ((0, "down", RED), (1, "up", GREEN))
Kind = Literal["timeseries", "stat", "state-timeline"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its series. A bound is drawn as a dashed line."""

    expr: str
    legend: str
    bound: bool = False


@dataclass(frozen=True)
class Panel:
    """A question, and the queries that answer it. `more` is the uid of the dashboard that goes into it."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    stacked: bool = False
    steps: bool = False
    least: float | None = 0
    most: float | None = None
    thresholds: tuple[tuple[float, str], ...] = ()
    values: tuple[tuple[int, str, str], ...] = ()  # (value, word, colour), for states
    more: str = ""


@dataclass(frozen=True)
class Row:
    """A wider question over a few panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Choice:
    """A variable of a dashboard: the values of one label, of which the viewer picks some."""

    name: str
    label: str
    query: str


@dataclass(frozen=True)
class Dashboard:
    """A page of rows."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()
