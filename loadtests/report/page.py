"""Building blocks of the pages in docs/results. All return Markdown without a trailing newline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from loadtests.report.figure import Figure, summary

FIGURES = ("Figure", "Value:", "Target:", "", "Note")
"""The columns of a table of figures."""


def head(title: str, *, command: str, machine: str) -> str:
    return f"# {title}\n\nWritten by `{command}`, on {machine}.\n"


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table, line by line. A column whose name ends with a colon is aligned to the right, for numbers."""
    yield row(name.rstrip(":") for name in columns)
    yield f"|{'|'.join('---:' if name.endswith(':') else '---' for name in columns)}|"
    yield from map(row, rows)


def cells(figure: Figure) -> tuple[str, ...]:
    """A row of a table with the columns `FIGURES`."""
    return figure.name, figure.shown, figure.wanted, figure.verdict, figure.note


def figures_table(figures: Iterable[Figure]) -> Iterator[str]:
    yield from table(FIGURES, map(cells, figures))


def parts_table(parts: Mapping[str, Sequence[Figure]], *, part: str = "Part") -> Iterator[str]:
    """A table over several parts, each named at its first figure. `part` is the header of the first column."""
    rows = [(name if at == 0 else "", *cells(figure)) for name, some in parts.items() for at, figure in enumerate(some)]
    yield from table((part, *FIGURES), rows)


def parts_summary(parts: Mapping[str, Sequence[Figure]]) -> str:
    return summary(figure for some in parts.values() for figure in some)


def picture(stem: str, alt: str) -> str:
    """A picture with a light and a dark variant: STEM.svg and STEM-dark.svg beside the page."""
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{stem}-dark.svg">\n'
        f'  <img src="{stem}.svg" width="760" alt="{alt}">\n</picture>'
    )
