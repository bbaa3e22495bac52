"""A part of the page: what was asked, a table, and the figures that have a target."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loadtests.report.figure import Figure, number

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is to the left, the others are numbers."""

    head: Row
    rows: list[Row]

    def markdown(self) -> Iterator[str]:
        yield _line(self.head)
        yield "|---|" + "---:|" * (len(self.head) - 1)
        yield from map(_line, self.rows)


@dataclass(frozen=True, slots=True)
class Section:
    """`about` says what was run, `notes` come after the tables."""

    title: str
    about: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> Iterator[str]:
        yield from (f"## {self.title}", "", self.about, "")
        for table in self.tables:
            yield from table.markdown()
            yield ""
        for note in self.notes:
            yield from (note, "")


@dataclass(frozen=True, slots=True)
class Spent:
    """What something took. Processor seconds are those of all processes that computed it."""

    wall_s: float
    cpu_s: float


def middle(values: Iterable[float]) -> str:
    """The median of repeated runs with its extremes."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return number(ordered[0])
    return f"{number(statistics.median(ordered))} ({number(ordered[0])}-{number(ordered[-1])})"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
