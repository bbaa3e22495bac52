"""The page docs/results/locust.md: a row for each scenario, and the router's metrics over the same minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from loadtests.report.figure import Figure, at_most, held
from loadtests.report.page import table
from loadtests.report.result import Plot, Result
from loadtests.runs.people.playing import Played
from loadtests.runs.people.watching import rates, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

COLUMNS = (
    "Users", "RPS", "p50", "p95", "p99", "Failure rate", "Refused", "Cut", "Waiting, mean", "Waiting, max",
    "Rejections/s, max", "Cut answers/s, max", "Level, max",
)  # fmt: skip
HOW_TO_READ = """\
Users wait for their answer, think and ask again, so they ask less when the service slows. These figures describe the
users that asked, and not those that would have arrived meanwhile ([how to read the
result](../../loadtests/README.md#how-to-read-the-result)). Users: the highest number at any time. RPS: requests a
second, however they ended. Percentiles are of answers only. A failure is anything but an answer in time, a proper
rejection, a user that gave up, and what a worker that the scenario slowed could not finish; the target is none. Refused
and cut are shares of all requests; a shortened answer discloses the cut.

The columns from *Waiting* on are the router's own metrics over the same minutes: queued requests, rejections at
admission, answers with something cut, and the highest degradation level."""
ALT = "Queue depth, rejections a second and cut answers a second over the time of each scenario."
PANELS = ("queued requests", "rejections a second", "cut answers a second")
ROW_IN, TOP_IN, BOTTOM_IN = 0.95, 1.05, 0.5


def result(played: Sequence[Played]) -> Result:
    """The page and its figures. Without samples of the router there is no plot."""
    parts = {each.scenario: list(figures(each)) for each in played}
    seen = [each for each in played if len(each.samples) > 1]
    plots = [Plot(ALT, partial(draw, seen))] if seen else []
    questions = table(("Scenario", "What it asks"), ((f"`{each.scenario}`", each.asks) for each in played))
    verdict = held(figure for some in parts.values() for figure in some)
    return Result(
        "Locust scenarios", parts, [verdict, _table(parts), HOW_TO_READ, *plots, "## The questions", questions]
    )


def figures(played: Played) -> Iterator[Figure]:
    """A scenario's figures, by `COLUMNS`; unknown ones are left out."""
    requests = played.requests or float("nan")
    yield Figure("Users", played.users)
    yield Figure("RPS", played.requests / played.seconds if played.seconds else 0.0, "/s")
    for name, value in (("p50", played.p50_ms), ("p95", played.p95_ms), ("p99", played.p99_ms)):
        if value is not None:
            yield Figure(name, value, "ms")
    yield at_most("Failure rate", played.failed / requests, 0.0, "%")
    yield Figure("Refused", played.refused / requests, "%")
    yield Figure("Cut", played.degraded / requests, "%")
    yield from (Figure(name, value) for name, value in zip(COLUMNS[-5:], summary(played.samples), strict=False))


def _table(parts: dict[str, list[Figure]]) -> Iterator[str]:
    rows = ((name, {figure.name: figure for figure in some}) for name, some in parts.items())
    cells = ((f"`{name}`", *(_cell(some.get(column)) for column in COLUMNS)) for name, some in rows)
    yield from table(("Scenario", *(f"{name}:" for name in COLUMNS)), cells)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"**{figure.shown}**" if figure.held is False else figure.shown


# ---- the plot


def draw(played: Sequence[Played], theme: Theme) -> Drawing:
    """A row of panels for each scenario, drawn from the samples like a time series in Grafana."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import SMALL_PT, WIDTH_IN, headline

    height_in = TOP_IN + BOTTOM_IN + ROW_IN * len(played)
    drawing = Drawing(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(drawing)
    top, bottom = 1 - TOP_IN / height_in, BOTTOM_IN / height_in
    grid = drawing.add_gridspec(len(played), 3, left=0.17, right=0.98, top=top, bottom=bottom, hspace=0.45, wspace=0.22)
    note = "From the router's metrics, second by second. Shaded: the scenario itself had slowed workers."
    headline(drawing, theme, "What does the router do under simulated users?", note)
    colors = (theme.weir, theme.wasted, theme.tenants[1])
    for place, each in enumerate(played):
        waiting = [(sample.at_s, sample.waiting) for sample in each.samples]
        lines = (waiting, rates(each.samples, "refused"), rates(each.samples, "degraded"))
        for column, (line, color, title) in enumerate(zip(lines, colors, PANELS, strict=True)):
            axes = drawing.add_subplot(grid[place, column])
            _panel(axes, line, color, each, theme)
            if place == 0:
                axes.set_title(title, fontsize=SMALL_PT, color=theme.ink, loc="left")
            if place == len(played) - 1:
                axes.set_xlabel("seconds", fontsize=SMALL_PT)
            if column == 0:
                label = each.scenario.replace("_", "\n")
                axes.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=SMALL_PT, color=theme.ink)
    return drawing


def _panel(axes: Axes, line: Sequence[tuple[float, float]], color: str, played: Played, theme: Theme) -> None:
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
    axes.tick_params(length=0, labelsize="small")
