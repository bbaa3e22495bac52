"""The result of a measurement, written as a page, as JSON and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadtests.report.figure import Figure
from loadtests.report.page import head, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. `draw` imports matplotlib, which is an optional extra, only when it is called.

    The files are NAME.svg and NAME-dark.svg; `suffix` follows the page's name.
    """

    alt: str
    draw: Callable[[Theme], Drawing]
    suffix: str = ""


Block = str | Plot | Iterable[str]
"""A block of a page: Markdown, a plot, or the lines of a table. Empty blocks are left out."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark measured. `parts` are all figures; `blocks` are the page below its title."""

    title: str
    parts: Mapping[str, Sequence[Figure]]
    blocks: Sequence[Block]
    on: str = ""
    """What else it was measured on, beside the machine: versions, models."""

    @property
    def figures(self) -> list[Figure]:
        return [figure for some in self.parts.values() for figure in some]


def write(result: Result, stem: Path, *, command: str, machine: str) -> list[Path]:
    """Writes STEM.md, STEM.json and the pictures, and returns their paths. Without matplotlib there are no pictures."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    drawn = {plot.suffix: files for plot in result.blocks if isinstance(plot, Plot) if (files := _drawn(plot, stem))}
    page, data = stem.with_name(f"{stem.name}.md"), stem.with_name(f"{stem.name}.json")
    on = "; ".join(filter(None, (machine, result.on)))
    page.write_text(markdown(result, command=command, machine=on, name=stem.name, drawn=drawn.keys()), encoding="utf-8")
    parts = {part: [figure.as_dict() for figure in some] for part, some in result.parts.items()}
    content = {"command": command, "machine": on, "parts": parts}
    data.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")  # NaN becomes null
    return [page, data, *(path for files in drawn.values() for path in files)]


def markdown(result: Result, *, command: str, machine: str, name: str = "", drawn: Iterable[str] = ()) -> str:
    """The page. It shows the plots whose suffix is in `drawn`."""
    shown = frozenset(drawn)
    texts = [head(result.title, command=command, machine=machine).rstrip()]
    texts += filter(None, (_text(block, name, shown) for block in result.blocks))
    return "\n\n".join(texts) + "\n"


def _text(block: Block, name: str, drawn: frozenset[str]) -> str:
    if isinstance(block, Plot):
        return picture(f"{name}{block.suffix}", block.alt) if block.suffix in drawn else ""
    return block.strip() if isinstance(block, str) else "\n".join(block)


def _drawn(plot: Plot, stem: Path) -> list[Path]:
    try:
        from loadtests.report.style import save

        return list(save(plot.draw, stem.with_name(f"{stem.name}{plot.suffix}")))
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        return []
