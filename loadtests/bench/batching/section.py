"""A part of the page: what was asked, the figures that have a target, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from loadtests.report.figure import Figure, number
from loadtests.report.page import table
from loadtests.report.result import Block

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """`about` says what was run; `below` stands after it."""

    title: str
    about: str
    figures: list[Figure] = field(default_factory=list)
    below: list[Block] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """Of a page."""
        yield f"## {self.title}\n\n{self.about}"
        yield from self.below


def numbers_table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    """The first column is to the left, the others are numbers."""
    first, *others = head
    return table((first, *(f"{name}:" for name in others)), rows)


def middle(values: Iterable[float]) -> str:
    """The median of repeated runs with its extremes."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return number(ordered[0])
    return f"{number(statistics.median(ordered))} ({number(ordered[0])}-{number(ordered[-1])})"
