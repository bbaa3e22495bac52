"""The style of every plot: one palette, one type size, Weir in front of the baselines.

Weir's blue differs from the muted tints of the baselines for every kind of colour blindness (after Okabe and Ito, and
Tol). Each baseline also has its own dash, so no line is identified by colour alone. Lines are labelled at their ends
instead of in a legend.

The same run gives the same bytes: SVG ids are hashed from a fixed salt, and no date is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN = 8.4, 4.7
LABEL_PT, SMALL_PT, TITLE_PT = 10.0, 9.0, 13.0
WEIR = "weir"
BASELINES = ("vtc", "round_robin_ttl_cancel", "round_robin_ttl", "fifo_ttl", "bounded_fifo", "fifo")
SOLID = (0, ())
PNG_DPI = 160


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    paper: str
    ink: str
    quiet: str
    grid: str
    weir: str
    others: tuple[str, ...]
    tenants: tuple[str, ...]
    useful: str
    wasted: str


LIGHT = Theme(
    name="light",
    paper="#fcfcfa",
    ink="#22272e",
    quiet="#6a7178",
    grid="#e4e4df",
    weir="#0064a8",
    others=("#a8714a", "#8a8f98", "#b0932f", "#6f8f7a", "#9a7aa6", "#b57585", "#7b9cbf"),
    tenants=("#0064a8", "#d08a2c", "#3b9c7c", "#a4568c", "#6b7a3a", "#58626c"),
    useful="#757d86",
    wasted="#c8643c",
)
DARK = Theme(
    name="dark",
    paper="#1d2126",
    ink="#e6e8ea",
    quiet="#9aa1a9",
    grid="#30363d",
    weir="#56b4e9",
    others=("#c08a63", "#8f959e", "#bfa550", "#7fa38b", "#a98bb5", "#c28796", "#7f97b3"),
    tenants=("#56b4e9", "#e0a04a", "#5cc09c", "#c986b3", "#a5b56a", "#a9b2bb"),
    useful="#7d858e",
    wasted="#e08a5f",
)
DASHES: tuple[Any, ...] = (
    (0, (6, 1.6)),
    (0, (1.2, 1.4)),
    (0, (5, 1.4, 1.2, 1.4)),
    (0, (3, 1.2)),
    (0, (8, 1.6, 1.2, 1.6, 1.2, 1.6)),
    (0, (2, 2.4)),
    (0, (10, 2)),
)


@dataclass(frozen=True, slots=True)
class Stroke:
    color: str
    width: float
    dash: Any
    front: int
    is_first: bool = False
    """Whether it is the scenario's main variant of Weir."""


def strokes(policies: Sequence[str], theme: Theme) -> dict[str, Stroke]:
    """Weir is drawn in front. A baseline looks the same in every plot; a scenario's own policies get what is left."""
    others = [name for name in policies if not is_weir(name)]
    unknown = iter(range(len(BASELINES), len(BASELINES) + len(others)))
    drawn: dict[str, Stroke] = {}
    for name in others:
        place = BASELINES.index(name) if name in BASELINES else next(unknown)
        drawn[name] = Stroke(theme.others[place % len(theme.others)], 1.4, DASHES[place % len(DASHES)], 3)
    ours = [name for name in policies if is_weir(name)]
    for i, name in enumerate(ours):  # variants of Weir share its colour and differ by their dash
        drawn[name] = Stroke(theme.weir, 2.6 if i == 0 else 1.9, SOLID if i == 0 else DASHES[i - 1], 5, i == 0)
    return drawn


def is_weir(policy: str) -> bool:
    return policy == WEIR or policy.startswith(f"{WEIR}_") or policy.startswith(f"{WEIR} ")


def settings(theme: Theme) -> dict[Any, Any]:
    """matplotlib's rcParams for a theme, as far as they differ from the defaults."""
    return {
        "font.family": "DejaVu Sans",  # ships with matplotlib, so that every machine draws the same
        "font.size": LABEL_PT,
        "svg.fonttype": "none",  # keeps text as text: selectable, searchable, readable by a screen reader
        "svg.hashsalt": "weir",
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.quiet,
        "axes.linewidth": 0.8,
        "axes.labelcolor": theme.quiet,
        "axes.labelsize": LABEL_PT,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.labelsize": SMALL_PT,
        "ytick.labelsize": SMALL_PT,
        "ytick.left": False,
        "text.color": theme.ink,
        "lines.solid_capstyle": "round",
        "lines.dash_capstyle": "butt",
    }


def save(draw: Callable[[Theme], Figure], stem: Path, *, png: Path | None = None) -> Iterator[Path]:
    """Writes STEM.svg and STEM-dark.svg and yields their paths; with `png`, also STEM.png in that folder."""
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    for theme in (LIGHT, DARK):
        path = stem.with_name(f"{stem.name}{'' if theme is LIGHT else '-dark'}.svg")
        with mpl.rc_context(settings(theme)):
            figure = draw(theme)
            figure.savefig(path, format="svg", metadata=metadata)
            yield path
            if png is not None and theme is LIGHT:
                figure.savefig(png / f"{stem.name}.png", dpi=PNG_DPI)
                yield png / f"{stem.name}.png"


def blank(height_in: float) -> Figure:
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    return figure


def sheet(
    columns: int = 1, *, left: float = 0.1, right: float = 0.77, height_in: float = HEIGHT_IN, top_in: float = 0.92
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes. The right margin holds the labels of the lines; `top_in` holds the headline."""
    figure = blank(height_in)
    grid = figure.add_gridspec(
        1, columns, left=left, right=right, top=1 - top_in / height_in, bottom=0.62 / height_in, wspace=0.17
    )
    first = figure.add_subplot(grid[0, 0])
    rest = [figure.add_subplot(grid[0, i], sharex=first, sharey=first) for i in range(1, columns)]
    return figure, [first, *rest]


def headline(figure: Figure, theme: Theme, question: str, note: str) -> None:
    """The question that the plot answers, and below it a note on what was run."""
    top = figure.get_figheight()
    figure.text(0.02, 1 - 0.16 / top, question, fontsize=TITLE_PT, fontweight="bold", color=theme.ink, va="top")
    figure.text(0.02, 1 - 0.47 / top, note, fontsize=SMALL_PT, color=theme.quiet, va="top")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, in the same order, at least `gap` apart, and within `low` and `high` if they fit.

    Positions that are too close form a block, which is placed at the mean of the wanted positions.
    """
    order = sorted(range(len(wanted)), key=lambda i: (round(2 * wanted[i] / gap), -i))  # equal ones: the first on top
    blocks: list[tuple[float, int]] = []  # (position of its lowest member, number of members)
    for i in order:
        start, size = wanted[i], 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > start:
            before, members = blocks.pop()
            start = (before * members + (start - members * gap) * size) / (members + size)
            size += members
        blocks.append((start, size))
    places = [start + gap * k for start, size in blocks for k in range(size)]
    for k in range(len(places) - 1, -1, -1):
        places[k] = min(places[k], high - (len(places) - 1 - k) * gap)
    for k in range(len(places)):
        places[k] = max(places[k], low + k * gap)
    return [place for _, place in sorted(zip(order, places, strict=True))]
