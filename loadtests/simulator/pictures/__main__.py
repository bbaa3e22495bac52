"""`make pictures`: draw the pictures of the mechanism pages, and write down the figures behind them.

python -m loadtests.simulator.pictures                 all of them
python -m loadtests.simulator.pictures true-up hints   these only
python -m loadtests.simulator.pictures --png FOLDER    PNG files as well, to look at

All tables go into figures.md, and short ones on the pages that quote them. A page says where with
`<!-- figures: NAME -->` and `<!-- end of figures -->`; what is between them is written anew.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from loadtests.report.page import table
from loadtests.report.style import save
from loadtests.simulator.columns import MAIN, MORE
from loadtests.simulator.pictures import batches, closeups
from loadtests.simulator.pictures.recipes import RECIPES, Runs
from loadtests.simulator.plots import Shape
from loadtests.simulator.results import Comparison
from loadtests.simulator.runs import cores

PAGES = Path("docs")
FOLDER = PAGES / "architecture" / "mechanisms" / "pictures"
QUOTED = ("weir", "weir_without")
CLOSEUPS: Mapping[str, Callable[[int], tuple[Shape | None, str]]] = {
    "coverage": closeups.coverage,
    "rate": closeups.rate,
    "steps": batches.steps,
    "added or multiplied": closeups.ways,
    "windows": batches.windows,
}
"""A drawing, where there is one, and a table, of which pages quote what is above the first empty line."""
ALL = (*RECIPES, *CLOSEUPS)
MARKED = re.compile(r"(<!-- figures: ([\w -]+) -->\n\n)(.*?)(\n\n<!-- end of figures -->)", re.DOTALL)
HEAD = """# The figures behind the pictures

Written by `make pictures`, with the pictures. Virtual time, fixed seeds: the same code gives the same figures on every
machine. The columns are explained on [the simulator's page](../../../simulator.md#read-the-table).
"""


def make(names: Sequence[str], folder: Path, png: Path | None, jobs: int) -> None:
    """Draw these, and write all tables again: theirs as they are now, the others as they stood."""
    found = sections(folder / "figures.md")
    made: dict[Runs, Comparison] = {}
    for name in names:
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        drawing, found[name], quoted = _one(name, made, jobs)
        if drawing is not None:
            list(save(drawing.draw, folder / name, png=png))
        write(folder / "figures.md", {each: found[each] for each in ALL if each in found})
        for path in quote(PAGES, {name: quoted}) if quoted else ():
            sys.stdout.write(f"  {path}\n")


def _one(name: str, made: dict[Runs, Comparison], jobs: int) -> tuple[Shape | None, str, str]:
    """A drawing, a section of figures.md, and what pages quote of it."""
    if name in CLOSEUPS:
        drawing, text = CLOSEUPS[name](jobs)
        return drawing, text, text.partition("\n\n")[0]
    recipe = RECIPES[name]
    comparison = made[recipe.runs] = made.get(recipe.runs) or recipe.runs.make(jobs)
    drawing = recipe.chart(comparison) if recipe.look else None
    first = next(each for each in RECIPES if RECIPES[each].runs == recipe.runs)
    told = [f"`{recipe.runs.command}`", "", *figures(comparison)]
    text = "\n".join(told) if first == name else f"The runs of [{first}](#{first})."
    return drawing, text, "\n".join(short(comparison, recipe.quoted)) if recipe.quoted else ""


# ---- tables


def figures(comparison: Comparison) -> Iterator[str]:
    """The simulator's table, without what a busy machine changes, and without columns that have nothing to say."""
    columns = [column for column in (*MAIN, *MORE) if column.head != "sim." and column.says(comparison.cells)]
    rows = (
        (_load(cell.load), cell.policy, *(column.told(cell) for column in columns))
        for load in comparison.loads
        for cell in comparison.at(load)
    )
    yield from table(("load", "policy", *(f"{column.name}:" for column in columns)), rows)


def short(comparison: Comparison, names: Sequence[str]) -> Iterator[str]:
    """A row for each load; each of these columns for Weir with and without, beside each other."""
    columns = [column for name in names for column in (*MAIN, *MORE) if column.name == name]
    rows = []
    for load in comparison.loads:
        cells = {cell.policy: cell for cell in comparison.at(load)}
        rows.append((_load(load), *(column.told(cells[policy]) for column in columns for policy in QUOTED)))
    yield from table(("load", *(f"{name}: {policy}:" for name in names for policy in QUOTED)), rows)


def _load(load: float | None) -> str:
    return "" if load is None else f"{load:g}x"


# ---- pages


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


def quote(folder: Path, found: Mapping[str, str]) -> Iterator[Path]:
    """Put each table that was made where the pages below this folder want it."""
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        filled = MARKED.sub(lambda mark: mark[1] + found.get(mark[2], mark[3]) + mark[4], text)
        if filled != text:
            path.write_text(filled, encoding="utf-8")
            yield path


def main() -> int:
    """The exit status; 2 for a name that there is not."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the mechanism pages.")
    parser.add_argument("names", nargs="*", help=", ".join(ALL))
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--png", type=Path, help="a folder for PNG files, to look at")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - {*ALL}):
        parser.error(f"no picture {', '.join(unknown)}")
    for folder in filter(None, (asked.png, asked.out)):
        folder.mkdir(parents=True, exist_ok=True)
    make(asked.names or ALL, asked.out, asked.png, asked.jobs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
