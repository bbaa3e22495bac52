"""`make pictures`: draw the pictures of the mechanism pages and write the figures behind them.

python -m loadtests.simulator.pictures                 all of them
python -m loadtests.simulator.pictures true-up hints   these only
python -m loadtests.simulator.pictures --png FOLDER    PNG files as well, to look at

Each picture's figures are a CSV file beside it. commands.csv names the file and the command of each picture.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from loadtests.report.style import save
from loadtests.simulator.columns import MAIN, MORE, load_name
from loadtests.simulator.pictures import batches, closeups
from loadtests.simulator.pictures.recipes import RECIPES, Runs
from loadtests.simulator.plots import Shape
from loadtests.simulator.results import Comparison
from loadtests.simulator.runs import cores

FOLDER = Path("docs/architecture/mechanisms/pictures")
CLOSEUPS: Mapping[str, Callable[[int], tuple[Shape | None, Iterable[Sequence[str]]]]] = {
    "coverage": closeups.coverage,
    "rate": closeups.rate,
    "steps": batches.steps,
    "added-or-multiplied": closeups.ways,
    "windows": batches.windows,
}
"""A drawing, where there is one, and the rows of the CSV file, the heading first."""
ALL = (*RECIPES, *CLOSEUPS)


def make(names: Sequence[str], folder: Path, png: Path | None, jobs: int) -> None:
    """Draw the named pictures and write their CSV files, and commands.csv."""
    write(folder / "commands.csv", commands())
    made: dict[Runs, Comparison] = {}
    for name in names:
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        drawing, rows = CLOSEUPS[name](jobs) if name in CLOSEUPS else _recipe(name, made, jobs)
        if drawing is not None:
            list(save(drawing.draw, folder / name, png=png))
        write(folder / csv_name(name), rows)


def _recipe(name: str, made: dict[Runs, Comparison], jobs: int) -> tuple[Shape | None, Iterable[Sequence[str]]]:
    recipe = RECIPES[name]
    comparison = made[recipe.runs] = made.get(recipe.runs) or recipe.runs.make(jobs)
    return recipe.chart(comparison) if recipe.look else None, figures(comparison)


def figures(comparison: Comparison) -> Iterator[Sequence[str]]:
    """A row for each cell. Leaves out the speed of the simulator, which depends on the machine, and empty columns."""
    columns = [column for column in (*MAIN, *MORE) if column.head != "sim." and column.has_value(comparison.cells)]
    yield ("load", "policy", *(column.name for column in columns))
    for load in comparison.loads:
        for cell in comparison.at(load):
            shown = "" if load is None else load_name(load)
            yield (shown, cell.policy, *(column.text(cell) for column in columns))


def commands() -> Iterator[Sequence[str]]:
    """The CSV file of each picture, and the command that gives its figures."""
    yield "name", "figures", "command"
    for name in ALL:
        command = RECIPES[name].runs.command if name in RECIPES else f"make pictures ARGS={name}"
        yield name, csv_name(name), command


def csv_name(name: str) -> str:
    """Pictures of the same runs share the file of the first."""
    if name in RECIPES:
        name = next(each for each in RECIPES if RECIPES[each].runs == RECIPES[name].runs)
    return f"{name}.csv"


def write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> int:
    """Exit status; 2 for an unknown name."""
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
