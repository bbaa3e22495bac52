"""What Grafana shows of the same minutes, drawn from the same samples: a row of panels for each scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtests.report.style import DARK, LIGHT, SMALL_PT, WIDTH_IN, Theme, headline, settings
from loadtests.runs.people.kept import Played
from loadtests.runs.people.watching import rates

ROW_IN, TOP_IN, BOTTOM_IN = 0.95, 1.05, 0.5
PANELS = ("requests in line", "refusals a second", "cut answers a second")
Line = Sequence[tuple[float, float]]


def draw(played: Sequence[Played], folder: Path, stem: str) -> bool:
    """STEM.svg and STEM-dark.svg in this folder; False where the router told nothing."""
    told = [each for each in played if len(each.samples) > 1]
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")) if told else ():
        with mpl.rc_context(settings(theme)):
            figure = _paint(told, theme)
            figure.savefig(folder / f"{stem}{ending}", metadata={"Date": None, "Creator": None})
    return bool(told)


def _paint(played: Sequence[Played], theme: Theme) -> Figure:
    height_in = TOP_IN + BOTTOM_IN + ROW_IN * len(played)
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    top, bottom = 1 - TOP_IN / height_in, BOTTOM_IN / height_in
    grid = figure.add_gridspec(len(played), 3, left=0.17, right=0.98, top=top, bottom=bottom, hspace=0.45, wspace=0.22)
    note = "By the router's own metrics, second by second. Shaded: the scenario itself had slowed workers."
    headline(figure, theme, "What does the router do while people ask?", note)
    for place, each in enumerate(played):
        lines = list(_lines(each))
        for column, (line, color) in enumerate(zip(lines, _colors(theme), strict=True)):
            axes = figure.add_subplot(grid[place, column])
            _panel(axes, line, color, each, theme)
            if place == 0:
                axes.set_title(PANELS[column], fontsize=SMALL_PT, color=theme.ink, loc="left")
            if place == len(played) - 1:
                axes.set_xlabel("seconds", fontsize=SMALL_PT)
            if column == 0:
                words = each.scenario.replace("_", "\n")
                axes.set_ylabel(words, rotation=0, ha="right", va="center", fontsize=SMALL_PT, color=theme.ink)
    return figure


def _lines(played: Played) -> Iterator[Line]:
    samples = list(played.samples)
    yield [(each.at_s, each.waiting) for each in samples]
    yield rates(samples, "refused")
    yield rates(samples, "degraded")


def _colors(theme: Theme) -> tuple[str, str, str]:
    return theme.weir, theme.wasted, theme.tenants[1]


def _panel(axes: Axes, line: Line, color: str, played: Played, theme: Theme) -> None:
    """As Grafana draws a time series: a thin line, and the area below it faintly filled."""
    times, values = [at for at, _ in line], [value for _, value in line]
    for trouble in played.broken:
        axes.axvspan(trouble.from_s, trouble.until_s, color=theme.grid, zorder=0)
    axes.plot(times, values, color=color, linewidth=1.3, zorder=3)
    axes.fill_between(times, values, color=color, alpha=0.14, linewidth=0, zorder=2)
    axes.set_xlim(0, played.seconds)
    axes.set_ylim(0, max([1.0, *values]) * 1.12)
    axes.locator_params(axis="y", nbins=3, integer=True)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=True, axis="both")
    axes.tick_params(labelsize=SMALL_PT - 1, length=0)
