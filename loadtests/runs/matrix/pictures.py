"""The pictures beside the page, each for light and dark pages, drawn from the series alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.report.style import DARK, LIGHT, SMALL_PT, Stroke, Theme, headline, settings, sheet, spread, strokes
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Cell, Row, Series
from loadtests.runs.matrix.staging import troubles
from loadtests.runs.matrix.subjects import TITLES, WEIR
from loadtests.runs.matrix.targets import is_of

SWEEP = ("baseline", "at_capacity", "overload_2x", "overload_5x", "overload_10x")
SPREADS = (*SWEEP, "noisy_neighbour", "degradation", "bursty")  # scenarios with a single deadline
MARKERS = dict(zip(TITLES, "oHs^DvPX*dp", strict=True))
NEIGHBOURS = (
    ("noisy_neighbour", "small", "a fifth of the capacity\nbeside fifty times it"),
    ("mixed_deadlines", "impatient", "300 ms deadlines\nbeside 3 s ones at 3x"),
    ("mixed_sizes", "big", "big answers at 1x\nbeside small ones at 3x"),
    ("mixed_sizes", "small", "small answers at 3x\nbeside big ones at 1x"),
)
Paint = Callable[[Series, Mapping[str, Case], Theme], Figure | None]


def draw(series: Series, cases: Mapping[str, Case], folder: Path) -> Iterator[tuple[str, str]]:
    """Draws the pictures and yields their names and descriptions. Pictures without data are left out."""
    for name, shows, paint in PICTURES:
        painted = False
        for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
            with mpl.rc_context(settings(theme)):
                figure = paint(series, cases, theme)
                if figure is not None:
                    figure.savefig(folder / f"{name}{ending}", metadata={"Date": None, "Creator": None})
                    painted = True
        if painted:
            yield name, shows


def _sweep(series: Series, cases: Mapping[str, Case], theme: Theme) -> Figure | None:
    lines = {name: [row for each in SWEEP if (row := series.row(each, name)) is not None] for name in TITLES}
    lines = {name: rows for name, rows in lines.items() if len(rows) > 1}
    if not lines:
        return None
    figure, axes = sheet(2, left=0.07, right=0.84)
    headline(figure, theme, "Is the work useful, and in time?", "Open loop, real processes, deadline 1 s.")
    drawn = strokes(list(lines), theme)
    sides: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("goodput / capacity", lambda row: row.goodput), ("p95 of the admitted / deadline", _of_deadline),
    )  # fmt: skip
    for side, (title, value) in zip(axes, sides, strict=True):
        for name, rows in lines.items():
            _line(side, drawn[name], [row.load for row in rows], [value(row) for row in rows])
        side.axhline(1, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
        side.text(0, 1.01, title, transform=side.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")
        side.set_xlabel("load, times capacity")
    axes[0].set_xscale("log")
    axes[0].set_xticks([0.75, 1, 2, 5, 10], labels=["", "1", "2", "5", "10"])
    axes[0].minorticks_off()
    axes[0].set_ylim(0, 1.35)
    _names(axes[-1], drawn, {name: _of_deadline(rows[-1]) for name, rows in lines.items()}, 10.6, 1.35)
    return figure


def _of_deadline(row: Row) -> float:
    return row.p95_ms / row.deadline_ms if row.deadline_ms else 0.0


def _over_time(name: str, what: str) -> Paint:
    """Answers on time in each second, with the fault or phase shaded."""

    def paint(series: Series, cases: Mapping[str, Case], theme: Theme) -> Figure | None:
        found = {each: cell for each in TITLES if (cell := series.cell(name, each)) is not None and cell.seconds}
        if not found or name not in cases:
            return None
        scenario = cases[name].scenario
        figure, (axes,) = sheet(1, left=0.07, right=0.84)
        headline(figure, theme, scenario.question, f"{scenario.title}. Open loop, real processes.")
        drawn = strokes(list(found), theme)
        pace = len(next(iter(found.values())).seconds) / (scenario.duration_s + 1)
        shares = {
            each: [second.on_time / cell.capacity_per_s for second in cell.seconds[:-1]] for each, cell in found.items()
        }
        top = max(1.35, *(1.1 * share for each in shares.values() for share in each))
        spans = troubles(scenario)
        for from_s, to_s in spans:
            axes.axvspan(from_s * pace, to_s * pace, color=theme.grid, zorder=0)
        axes.text((min(spans)[0] + 0.3) * pace, 0.98 * top, what, color=theme.quiet, fontsize=SMALL_PT, va="top")
        for each, values in shares.items():
            _line(axes, drawn[each], [at + 0.5 for at in range(len(values))], values)
        ends = {each: values[-1] if values else 0.0 for each, values in shares.items()}
        axes.axhline(1, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_ylim(0, top)
        axes.set_xlim(0, len(next(iter(found.values())).seconds) - 1)
        axes.set_xlabel("seconds")
        axes.set_ylabel("answers on time a second / capacity")
        _names(axes, drawn, ends, axes.get_xlim()[1] * 1.01, top)
        return figure

    return paint


def _spreads(series: Series, cases: Mapping[str, Case], theme: Theme) -> Figure | None:
    names = [name for name in SPREADS if name in cases and series.row(name, WEIR.name) is not None]
    if not names:
        return None
    height_in = 2.2 + 0.95 * len(names)
    figure, (axes,) = sheet(1, left=0.19, right=0.97, height_in=height_in, top_in=1.25)  # the legend has two lines
    note = (
        "From the p50 (mark) over the p95 (bar) to the p99, as a share of the deadline. Admitted but unanswered counts."
    )
    headline(figure, theme, "How long do admitted requests take?", note)
    drawn, named = strokes(list(TITLES), theme), set[str]()
    for place, name in enumerate(names):
        having = [(each, row) for each in TITLES if (row := series.row(name, each)) is not None]
        for index, (each, row) in enumerate(having):
            y = place + (index - (len(having) - 1) / 2) * 0.8 / len(having)
            p50, p95, p99 = (value / row.deadline_ms for value in (row.p50_ms, row.p95_ms, row.p99_ms))
            label = None if each in named else TITLES[each]
            named.add(each)
            axes.plot([p50, p99], [y, y], color=drawn[each].color, linewidth=1.6, zorder=2)
            axes.plot([p50], [y], MARKERS[each], color=drawn[each].color, markersize=5, zorder=3, label=label)
            axes.plot([p95], [y], "|", color=drawn[each].color, markersize=9, markeredgewidth=2.2, zorder=3)
    axes.axvline(1, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(names)), labels=[fill(cases[name].title, 22) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.4)
    axes.grid(visible=False)
    axes.set_xlabel("share of the deadline")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=SMALL_PT)
    return figure


def _beside(series: Series, cases: Mapping[str, Case], theme: Theme) -> Figure | None:
    shown = [each for each in NEIGHBOURS if series.cell(each[0], WEIR.name) is not None]
    if not shown:
        return None
    figure, (axes,) = sheet(1, left=0.23, right=0.95, height_in=1.4 + 1.5 * len(shown))
    headline(figure, theme, "Which tenants are answered on time beside others?", "Share of the tenant's requests.")
    drawn = strokes(list(TITLES), theme)
    for place, (scenario, tenant, _) in enumerate(shown):
        shares = _shares(series, scenario, tenant)
        for index, (each, share) in enumerate(shares.items()):
            y = place + (index - (len(shares) - 1) / 2) * 0.85 / len(shares)
            axes.barh(y, share, height=0.75 / len(shares), color=drawn[each].color)
            label = f"{TITLES[each]}, {100 * share:.0f} %"
            axes.text(share + 0.01, y, label, va="center", fontsize=SMALL_PT - 2, color=theme.ink)
    axes.set_yticks(range(len(shown)), labels=[label for _, _, label in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(visible=False)
    return figure


def _shares(series: Series, scenario: str, tenant: str) -> dict[str, float]:
    cells: Mapping[str, Cell | None] = {name: series.cell(scenario, name) for name in TITLES}
    return {
        name: min(each.on_time for each in cell.rows[0].tenants if is_of(each, tenant))
        for name, cell in cells.items()
        if cell is not None
    }


def _line(axes: Axes, stroke: Stroke, xs: Sequence[float], ys: Sequence[float]) -> None:
    axes.plot(xs, ys, color=stroke.color, linewidth=stroke.width, linestyle=stroke.dash, zorder=stroke.front)


def _names(axes: Axes, drawn: Mapping[str, Stroke], ends: Mapping[str, float], x: float, top: float) -> None:
    places = spread([min(value, top) for value in ends.values()], 0.05 * top, 0, top)
    for name, y in zip(ends, places, strict=True):
        weight = "bold" if drawn[name].is_first else "normal"
        axes.text(x, y, TITLES[name], color=drawn[name].color, va="center", fontsize=SMALL_PT, fontweight=weight)


PICTURES: tuple[tuple[str, str, Paint], ...] = (
    ("matrix-goodput", "Goodput and the p95 of the admitted, for each load from three quarters of the capacity to ten "
     "times it, by subject.", _sweep),
    ("matrix-burst", "Answers on time in each second of a burst of ten times the capacity, by subject.",
     _over_time("burst", "ten times the capacity")),
    ("matrix-retry-storm", "Answers on time in each second of a retry storm, by subject.",
     _over_time("retry_storm", "the workers are almost stopped")),
    ("matrix-degradation", "Answers on time in each second while questions about documents rise to three times the "
     "capacity, with degradation and without.",
     _over_time("degradation_documents", "1.5, 2 and 3 times the capacity")),
    ("matrix-latency", "The p50, p95 and p99 of the admitted as shares of their deadlines, by scenario and subject.",
     _spreads),
    ("matrix-neighbours", "The share answered on time of tenants beside others unlike them, by subject.", _beside),
)  # fmt: skip
