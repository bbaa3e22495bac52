"""`make pictures`: draw the pictures of the mechanism pages, and write down the figures behind them.

python -m loadtests.simulator.pictures                 all of them
python -m loadtests.simulator.pictures true-up hints   these only
python -m loadtests.simulator.pictures --png FOLDER    PNG files as well, to look at
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

from loadtests.report import style
from loadtests.simulator import plots
from loadtests.simulator.charts import Panels
from loadtests.simulator.pictures import added, batches, page
from loadtests.simulator.pictures.closeups import CLOSEUPS, Own
from loadtests.simulator.pictures.recipes import PICTURES, TABLES, Drawable, Runs
from loadtests.simulator.results import Comparison
from loadtests.simulator.runs import cores

PAGES = Path("docs")
FOLDER = PAGES / "architecture" / "mechanisms" / "pictures"
WRITTEN: Mapping[str, Callable[[], str]] = {"added or multiplied": added.table, "windows": batches.windows}
"""Tables without a picture."""
ALL = (*PICTURES, *CLOSEUPS, *TABLES, *WRITTEN)


def draw(chart: Drawable, name: str, folder: Path, png: Path | None) -> None:
    """The simulator's drawing, under the picture's own name."""
    with tempfile.TemporaryDirectory() as made:
        for path in plots.draw([replace(chart, name="picture")], Path(made), "the"):
            target = png if path.suffix == ".png" else folder
            if target is not None:
                shutil.copyfile(path, target / path.name.replace("the-picture", name))


def draw_own(own: Own, name: str, folder: Path, png: Path | None) -> None:
    for theme in (style.LIGHT, style.DARK):
        with mpl.rc_context(style.settings(theme)):
            figure = own(theme)
            suffix = "" if theme is style.LIGHT else f"-{theme.name}"
            figure.savefig(folder / f"{name}{suffix}.svg", metadata={"Date": None, "Creator": None})
            if png is not None and theme is style.LIGHT:
                figure.savefig(png / f"{name}.png", dpi=plots.PNG_DPI)


def make(names: Sequence[str], folder: Path, png: Path | None, jobs: int) -> None:
    """Draw these, and write all tables again: theirs as they are now, the others as they stood."""
    found = page.sections(folder / "figures.md")
    made: dict[Runs, Comparison] = {}
    for name in names:
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
        found[name], quoted = _one(name, made, folder, png, jobs)
        page.write(folder / "figures.md", {each: found[each] for each in ALL if each in found})
        for path in page.quote(PAGES, {name: quoted}) if quoted else ():
            sys.stdout.write(f"  {path}\n")


def _one(name: str, made: dict[Runs, Comparison], folder: Path, png: Path | None, jobs: int) -> tuple[str, str]:
    """A section of figures.md, and what pages quote of it."""
    if name in WRITTEN:
        return (text := WRITTEN[name]()), text.partition("\n\n`")[0]
    if name in CLOSEUPS:
        closeup, text = CLOSEUPS[name](jobs)
        if isinstance(closeup, Panels):
            draw(closeup, name, folder, png)
        else:
            draw_own(closeup, name, folder, png)
        return text, text.partition("\n\n")[0]
    runs = _runs(name)
    comparison = made[runs] = made.get(runs) or runs.make(jobs)
    quoted = ""
    if name in PICTURES:
        draw(PICTURES[name].chart(comparison), name, folder, png)
        if columns := PICTURES[name].quoted:
            quoted = page.short(comparison, columns, ("weir", "weir_without"))
    first = next(each for each in (*PICTURES, *TABLES) if _runs(each) == runs)
    if first != name:
        return f"The runs of [{first}](#{first}).", quoted
    return "\n".join([f"`{runs.command}`", "", *page.tables(comparison)]), quoted


def _runs(name: str) -> Runs:
    return PICTURES[name].runs if name in PICTURES else TABLES[name]


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of the mechanism pages.")
    parser.add_argument("names", nargs="*", help=", ".join(ALL))
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--png", type=Path, help="a folder for PNG files, to look at")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - {*ALL}):
        parser.error(f"no picture {', '.join(unknown)}")
    if asked.png is not None:
        asked.png.mkdir(parents=True, exist_ok=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    make(asked.names or ALL, asked.out, asked.png, asked.jobs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
