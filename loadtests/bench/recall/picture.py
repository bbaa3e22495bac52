"""The picture: recall and latency over the tenant's share of all rows, a line for each way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from loadtests.bench.recall.measure import Line
from loadtests.bench.recall.page import WANTED
from loadtests.bench.recall.ways import EFFORTS, EXACT_NAME, UNASKED, graph_name
from loadtests.report.style import DARK, LIGHT, SMALL_PT, Theme, headline, settings, sheet

QUESTION = "Of the ten right rows, how many are found, and how soon?"


def draw(lines: Sequence[Line], page: Path) -> Iterator[Path]:
    """Beside `recall.md`: `recall.svg` and, for dark pages, `recall-dark.svg`. Of two kinds of data, the last."""
    data = lines[-1].data
    shown = [line for line in lines if line.data == data]
    note = f"{max(line.chunks for line in shown):,} rows, {data}; by the share of them that the tenant has."
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            figure, (recall,) = sheet(1, left=0.07, right=0.38)
            latency = figure.add_axes(recall.get_position().translated(0.39, 0).bounds)
            headline(figure, theme, QUESTION, note)
            for name, style in _styles(theme).items():
                at = sorted((100 * line.chunks / line.all_chunks, line) for line in shown if line.way == name)
                recall.plot([x for x, _ in at], [line.recall for _, line in at], label=name, **style)
                latency.plot([x for x, _ in at], [line.p50_ms for _, line in at], **style)
            recall.axhline(WANTED, color=theme.quiet, linewidth=0.8)
            recall.text(
                100, WANTED - 0.02, f"wanted: {WANTED}", color=theme.quiet, fontsize=SMALL_PT, va="top", ha="right"
            )
            _label(recall, "recall")
            _label(latency, "median of the latency, ms")
            latency.set_yscale("log")
            latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            latency.yaxis.set_minor_formatter(NullFormatter())
            figure.legend(loc="center right", frameon=False, labelcolor="linecolor", fontsize=SMALL_PT)
            path = page.with_name(page.stem + ending)
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            yield path


def _styles(theme: Theme) -> dict[str, dict[str, Any]]:
    """Each has its colour and its dash."""
    efforts = [
        {"color": color, "linestyle": dash, "linewidth": width}
        for color, dash, width in (
            (theme.tenants[1], (0, (6, 2)), 1.6), (theme.weir, (0, ()), 2.4), (theme.tenants[2], (0, (3, 1)), 1.6)
        )
    ]  # fmt: skip
    graphs = dict(zip(map(graph_name, EFFORTS), efforts, strict=True))
    exact = {"color": theme.useful, "linestyle": (0, (5, 3)), "linewidth": 2.0}
    return {EXACT_NAME: exact, **graphs, UNASKED: {"color": theme.wasted, "linestyle": (0, (1, 1.5)), "linewidth": 2.0}}


def _label(axes: Axes, name: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("% of all rows are the tenant's")
    axes.set_title(name, loc="left", fontsize=SMALL_PT)
