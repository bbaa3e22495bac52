"""The tables behind the pictures: all of them in figures.md, and the short ones on the pages that quote them.

A page says where with `<!-- figures: NAME -->` and `<!-- end of figures -->`; what is between them is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtests.simulator.columns import MAIN, MORE, Column
from loadtests.simulator.results import Comparison

HEAD = """# The figures behind the pictures

Written by `make pictures`, with the pictures. Virtual time, fixed seeds: the same code gives the same figures on every
machine. The columns are explained on [the simulator's page](../../../simulator.md#read-the-table).
"""


def tables(comparison: Comparison) -> Iterator[str]:
    """The simulator's table, without what a busy machine changes."""
    columns = [column for column in (*MAIN, *MORE) if column.head != "sim." and _matters(column, comparison)]
    yield "| load | policy | " + " | ".join(f"{column.head} {column.below}".strip() for column in columns) + " |"
    yield "|---|---|" + "---:|" * len(columns)
    for load in comparison.loads:
        for cell in comparison.at(load):
            found = [(column, cell.mean(column.read)) for column in columns]
            shown = [column.write(value) if value is not None else "" for column, value in found]
            named = f"{load:g}x" if load is not None else ""
            yield f"| {named} | {cell.policy} | " + " | ".join(shown) + " |"


def _matters(column: Column, comparison: Comparison) -> bool:
    """As in the terminal: a column with nothing to say is left out."""
    read = column.matters or column.read
    return any(cell.mean(read) is not None for cell in comparison.cells)


def sections(path: Path) -> dict[str, str]:
    """What stands there already, so that one picture can be drawn alone."""
    if not path.exists():
        return {}
    parts = path.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def write(path: Path, found: Mapping[str, str]) -> None:
    """Each section under its name."""
    parts = [f"## {name}\n\n{text}\n" for name, text in found.items()]
    path.write_text("\n".join([HEAD, *parts]), encoding="utf-8")


def short(comparison: Comparison, names: Sequence[str], policies: Sequence[str]) -> str:
    """A row for each load; each of these columns for each of these policies, beside each other."""
    columns = [column for name in names for column in (*MAIN, *MORE) if f"{column.head} {column.below}".strip() == name]
    lines = [f"| load | {' | '.join(f'{name}: {policy}' for name in names for policy in policies)} |"]
    lines.append("|---|" + "---:|" * (len(columns) * len(policies)))
    for load in comparison.loads:
        cells = {cell.policy: cell for cell in comparison.at(load)}
        found = [(column, cells[policy].mean(column.read)) for column in columns for policy in policies]
        shown = [column.write(value) if value is not None else "" for column, value in found]
        lines.append(f"| {f'{load:g}x' if load is not None else ''} | {' | '.join(shown)} |")
    return "\n".join(lines)


MARKED = re.compile(r"(<!-- figures: ([\w -]+) -->\n\n)(.*?)(\n\n<!-- end of figures -->)", re.DOTALL)


def quote(folder: Path, found: Mapping[str, str]) -> Iterator[Path]:
    """Put each table that was made where the pages below this folder want it."""
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        filled = MARKED.sub(lambda mark: mark[1] + found.get(mark[2], mark[3]) + mark[4], text)
        if filled != text:
            path.write_text(filled, encoding="utf-8")
            yield path
