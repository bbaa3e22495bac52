"""A section of the page: what was run, figures, and tables."""

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
    """`about` describes the run; `below` follows it."""

    title: str
    about: str
    figures: list[Figure] = field(default_factory=list)
    below: list[Block] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        yield f"## {self.title}\n\n{self.about}"
        yield from self.below


def numbers_table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    first, *others = head
    return table((first, *(f"{name}:" for name in others)), rows)


def middle(values: Iterable[float]) -> str:
    ordered = sorted(values)
    if len(ordered) == 1:
        return number(ordered[0])
    return f"{number(statistics.median(ordered))} ({number(ordered[0])}-{number(ordered[-1])})"
