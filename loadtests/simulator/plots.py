"""The kinds of plots, and how each is drawn; figures.py fills them with data.

Uses matplotlib's objects and the Agg canvas: no window and no global state, so processes can draw in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from loadtests.report.style import SMALL_PT, Stroke, Theme, headline, is_weir, save, sheet, spread, strokes
from loadtests.simulator.columns import load_name, share

POINT = 1 / 72
LABEL_GAP_PT = 13.0
DOTS = (0, (1.5, 2.5))
NAMES_START = 1.035
MIN_TICK_GAP = 0.05  # of the axis


class Curve(NamedTuple):
    """One line; None leaves a gap."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]


class Band(NamedTuple):
    """An interval to mark, in seconds."""

    start: float
    end: float
    label: str
    trouble: str


class Level(NamedTuple):
    y: float
    label: str


class Panel(NamedTuple):
    policy: str
    curves: tuple[Curve, ...]
    remark: str


class Bar(NamedTuple):
    """Shares of worker time: useful, wasted; the rest is idle."""

    policy: str
    useful: float
    wasted: float


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    question: str
    note: str
    x_label: str

    def draw(self, theme: Theme) -> Figure:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Chart(Shape):
    """Curves over one pair of axes."""

    y_label: str
    curves: tuple[Curve, ...]
    ideal: Curve | None = None
    bands: tuple[Band, ...] = ()
    levels: tuple[Level, ...] = ()
    loads: tuple[float, ...] = ()
    """Ticks of a logarithmic x axis of loads; empty for an x axis of time."""
    times: tuple[float, ...] = ()
    """Ticks of a logarithmic y axis, in seconds; empty for a linear one."""

    def draw(self, theme: Theme) -> Figure:
        figure, (axes,) = sheet()
        headline(figure, theme, self.question, self.note)
        drawn = strokes([curve.label for curve in self.curves], theme)
        for curve in self.curves:
            _line(axes, _lifted(curve, self), drawn[curve.label], marked=bool(self.loads))
        if self.ideal:
            axes.plot(self.ideal.xs, _floats(self.ideal.ys), color=theme.quiet, linewidth=1.0, linestyle=DOTS, zorder=2)
        _x_axis(axes, self)
        _y_axis(axes, self)
        _compare_with(axes, self, theme)
        named = [(_lifted(curve, self), drawn[curve.label]) for curve in self.curves]
        _name_lines(axes, [*named, (self.ideal, _plain_stroke(theme))] if self.ideal else named)
        return figure


@dataclass(frozen=True, slots=True)
class Panels(Shape):
    """A small chart for each of a few policies, with the same axes."""

    y_label: str
    panels: tuple[Panel, ...]

    def draw(self, theme: Theme) -> Figure:
        figure, panes = sheet(len(self.panels), right=0.88)
        headline(figure, theme, self.question, self.note)
        panes[0].set_ylabel(self.y_label)
        for axes, panel in zip(panes, self.panels, strict=True):
            _panel(axes, panel, theme)
            axes.set_xlabel(self.x_label)
            axes.tick_params(labelleft=axes is panes[0])
        highest = max(y or 0.0 for panel in self.panels for curve in panel.curves for y in curve.ys)
        panes[0].set_ylim(0, highest * 1.04)
        panes[0].set_xlim(0, max(curve.xs[-1] for panel in self.panels for curve in panel.curves))
        if len(self.panels[-1].curves) <= 6:
            _name_lines(
                panes[-1], [(curve, _tenant_stroke(i, theme)) for i, curve in enumerate(self.panels[-1].curves)]
            )
        return figure


@dataclass(frozen=True, slots=True)
class Bars(Shape):
    bars: tuple[Bar, ...]

    def draw(self, theme: Theme) -> Figure:
        figure, (axes,) = sheet(left=0.235, right=0.97, height_in=1.75 + 0.36 * len(self.bars))
        headline(figure, theme, self.question, self.note)
        for row, bar in enumerate(self.bars):
            axes.barh(row, bar.useful, color=theme.weir if is_weir(bar.policy) else theme.useful, height=0.62)
            axes.barh(row, bar.wasted, left=bar.useful, color=theme.wasted, height=0.62)
            _bar_words(axes, row, bar, theme)
        axes.set_yticks(range(len(self.bars)), [bar.policy for bar in self.bars], fontsize=SMALL_PT + 0.5)
        axes.tick_params(axis="y", length=0, pad=4)
        for words, bar in zip(axes.get_yticklabels(), self.bars, strict=True):
            words.set_color(theme.weir if is_weir(bar.policy) else theme.ink)
            words.set_fontweight("bold" if is_weir(bar.policy) else "normal")
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlim(0, 1.25)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.spines["bottom"].set_bounds(0, 1.0)
        axes.set_xlabel(self.x_label, x=0.5 / 1.25)
        return figure


def draw(charts: Sequence[Shape], folder: Path, prefix: str) -> Iterator[Path]:
    """Write each chart as PNG, SVG and SVG for dark pages. Yields the paths (`burst-waste.svg`, ...)."""
    for chart in charts:
        yield from save(chart.draw, folder / f"{prefix}-{chart.name}", png=folder)


# ---- curves


def _lifted(curve: Curve, chart: Chart) -> Curve:
    """Raises values to the lowest tick: a logarithmic axis has no zero."""
    if not chart.times:
        return curve
    return curve._replace(ys=tuple(y if y is None else max(y, chart.times[0]) for y in curve.ys))


def _line(axes: Axes, curve: Curve, stroke: Stroke, *, marked: bool) -> None:
    axes.plot(
        curve.xs,
        _floats(curve.ys),
        color=stroke.color,
        linewidth=stroke.width,
        linestyle=stroke.dash,
        zorder=stroke.front,
        marker="o" if marked else "",
        markersize=4.0 if stroke.is_first else 3.0,
        clip_on=False,
    )


def _x_axis(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    if chart.loads:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(chart.loads))
        axes.xaxis.set_major_formatter(FixedFormatter(_uncrowded(chart.loads)))
        axes.xaxis.set_minor_locator(NullLocator())
    xs = [x for curve in chart.curves for x in curve.xs]
    axes.set_xlim(min(xs) if chart.loads else 0, max(xs))


def _uncrowded(loads: Sequence[float]) -> list[str]:
    """The tick labels, without those that would overlap; 1x and the ends stay."""
    span = math.log(max(loads) / min(loads)) or 1.0
    kept: list[float] = []
    for load in sorted(loads, key=lambda load: (load != 1.0, load not in (min(loads), max(loads)), load)):
        if all(abs(math.log(load / other)) >= MIN_TICK_GAP * span for other in kept):
            kept.append(load)
    return [load_name(load) if load in kept else "" for load in loads]


def _y_axis(axes: Axes, chart: Chart) -> None:
    axes.set_ylabel(chart.y_label)
    ys = [y for curve in chart.curves for y in curve.ys if y is not None and not math.isnan(y)]
    ys += [level.y for level in chart.levels]
    if chart.times:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(chart.times))
        axes.yaxis.set_major_formatter(FixedFormatter(_ticks(chart)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(chart.times[0] * 0.9, chart.times[-1] * 1.1)
        return
    highest = max([*ys, 0.01]) * 1.06
    if chart.y_label.endswith(("share of capacity", "share of those asked")):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        highest = max(highest, 1.06)
    axes.set_ylim(0, highest)


def _ticks(chart: Chart) -> list[str]:
    names = [f"{time:g} s" if time >= 1 else f"{1000 * time:g} ms" for time in chart.times]
    is_lifted = any(y is not None and y < chart.times[0] for curve in chart.curves for y in curve.ys)
    return [f"≤ {names[0]}", *names[1:]] if is_lifted else names


def _compare_with(axes: Axes, chart: Chart, theme: Theme) -> None:
    for band in chart.bands:
        axes.axvspan(band.start, band.end, color=theme.quiet, alpha=0.13, linewidth=0, zorder=0)
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        axes.text((band.start + band.end) / 2, 1.01, band.label, fontsize=SMALL_PT, color=theme.quiet, **place)
    for level in chart.levels:
        axes.axhline(level.y, color=theme.quiet, linewidth=1.0, linestyle=DOTS, zorder=2)
        place = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "bottom"}
        words = axes.text(0.008, level.y, level.label, fontsize=SMALL_PT, color=theme.quiet, zorder=6, **place)
        words.set_path_effects([withStroke(linewidth=3, foreground=theme.paper)])


def _name_lines(axes: Axes, named: Sequence[tuple[Curve, Stroke]]) -> None:
    """Writes each line's name at its right end. Overlapping names move apart, with a thin line to the curve."""
    gap = LABEL_GAP_PT * POINT / _height_in(axes)
    ends = [_end(axes, curve) for curve, _ in named]
    places = spread([0.0 if end is None else end for end in ends], gap, 0.0, 1.0)
    for (curve, stroke), end, place in zip(named, ends, places, strict=True):
        leader = {"arrowstyle": "-", "color": stroke.color, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 0}
        axes.annotate(
            curve.label if end is not None else f"({curve.label}: none)",
            xy=(1.004, end or 0.0),
            xytext=(NAMES_START, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=stroke.color,
            fontsize=SMALL_PT + (1 if stroke.is_first else 0),
            fontweight="bold" if stroke.is_first else "normal",
            arrowprops={**leader, "relpos": (0, 0.5)} if end is not None else None,
            annotation_clip=False,
        )


def _end(axes: Axes, curve: Curve) -> float | None:
    """Height of the line's end as a fraction of the axes; None if the last value is missing."""
    last = curve.ys[-1]
    if last is None:
        return None
    _, pixel = axes.transData.transform((curve.xs[-1], max(last, 1e-9)))
    _, place = axes.transAxes.inverted().transform((0.0, pixel))
    return min(max(float(place), 0.0), 1.0)


def _height_in(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return float(axes.get_position().height * figure.get_figheight())


def _plain_stroke(theme: Theme) -> Stroke:
    return Stroke(theme.quiet, 1.0, DOTS, 2)


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


# ---- a panel for each policy


def _panel(axes: Axes, panel: Panel, theme: Theme) -> None:
    for i, curve in enumerate(panel.curves):
        _line(axes, curve, _tenant_stroke(i, theme), marked=False)
    ours = is_weir(panel.policy)
    axes.set_title(
        panel.policy,
        loc="left",
        pad=6,
        fontsize=SMALL_PT + 1,
        fontweight="bold" if ours else "normal",
        color=theme.weir if ours else theme.ink,
    )
    words = axes.text(0.03, 0.97, panel.remark, transform=axes.transAxes, va="top", fontsize=SMALL_PT, color=theme.ink)
    words.set_path_effects([withStroke(linewidth=4, foreground=theme.paper)])
    heights = [_floats(curve.ys) for curve in panel.curves]
    lowest, highest = (list(map(end, zip(*heights, strict=True))) for end in (min, max))
    axes.fill_between(panel.curves[0].xs, lowest, highest, color=theme.quiet, alpha=0.15, linewidth=0)


def _tenant_stroke(index: int, theme: Theme) -> Stroke:
    return Stroke(theme.tenants[index % len(theme.tenants)], 1.8, (0, ()), 3)


# ---- bars


def _bar_words(axes: Axes, row: int, bar: Bar, theme: Theme) -> None:
    """Writes the useful share into the bar and the wasted share behind it."""
    wasted = bar.wasted / (bar.useful + bar.wasted) if bar.useful + bar.wasted else 0.0
    if bar.useful > 0.2:
        axes.text(0.012, row, f"{share(bar.useful)} useful", va="center", fontsize=SMALL_PT, color=theme.paper)
    axes.text(
        bar.useful + bar.wasted + 0.012,
        row,
        f"{share(wasted)} of it wasted" if wasted >= 0.0005 else "nothing wasted",
        va="center",
        fontsize=SMALL_PT,
        color=theme.wasted if wasted >= 0.0005 else theme.quiet,
    )
