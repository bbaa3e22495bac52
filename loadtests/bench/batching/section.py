"""A part of the page: what was asked, a table, and the figures that have a target."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loadtests.report.figure import Figure, number
from loadtests.report.page import table
from loadtests.report.result import Block

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is to the left, the others are numbers."""

    head: Row
    rows: list[Row]

    def lines(self) -> Iterator[str]:
        """In Markdown."""
        first, *others = self.head
        return table((first, *(f"{name}:" for name in others)), self.rows)


@dataclass(frozen=True, slots=True)
class Section:
    """`about` says what was run, `notes` come after the tables."""

    title: str
    about: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Of a page."""
        yield f"## {self.title}\n\n{self.about}"
        yield from (table.lines() for table in self.tables)
        yield from self.notes


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
