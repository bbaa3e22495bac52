"""Writes the outputs of the series: JSON, pictures, the page, and the README's table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.matrix import kept, page, pictures, readme
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Series

NAME = "matrix"


def publish_own(series: Series, case: Case, folder: Path) -> None:
    """The page of one scenario, and what it is made from."""
    folder.mkdir(parents=True, exist_ok=True)
    name = case.name.replace("_", "-")
    kept.write(folder / f"{name}.json", series.of(case.name))
    (folder / f"{name}.md").write_text(page.own(series, case), encoding="utf-8")
    say(f"Written to {folder}: {name}.md and {name}.json.")


def publish(series: Series, cases: Mapping[str, Case], folder: Path, readme_path: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept.write(folder / f"{NAME}.json", series)
    drawn = list(pictures.draw(series, cases, folder))
    (folder / f"{NAME}.md").write_text(page.page(series, cases, drawn), encoding="utf-8")
    say(f"Written to {folder}: {NAME}.md, {NAME}.json and {2 * len(drawn)} pictures.")
    if readme_path is not None and not readme.update(readme_path, series):
        say(f"{readme_path.name} has no place for its table: {readme.BEGIN} ... {readme.END}")
