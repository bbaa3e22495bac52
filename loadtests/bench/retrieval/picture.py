"""A picture of the conditions: from the median to the 99th percentile, against the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl

from loadtests.bench.retrieval.budget import BOUND_MS, Line
from loadtests.bench.retrieval.stand import BUDGET_MS
from loadtests.report.style import DARK, LIGHT, SMALL_PT, headline, settings, sheet

QUESTION = "Does an answer come in time, whatever is wrong?"
NOTE = "A retrieval's latency from the median (ring) to the 99th percentile (dot), counted from when it should be sent."


def draw(lines: Sequence[Line], page: Path) -> Iterator[Path]:
    """Beside `retrieval.md`: `retrieval.svg` and, for dark pages, `retrieval-dark.svg`."""
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            figure, (axes,) = sheet(1, left=0.27, right=0.97)
            headline(figure, theme, QUESTION, NOTE)
            shown = [line for line in reversed(lines) if math.isfinite(line.seen.quantile_ms(0.99))]
            for height, line in enumerate(shown):
                median, late = line.seen.quantile_ms(0.5), line.seen.quantile_ms(0.99)
                color = theme.weir if late <= BOUND_MS else theme.wasted
                axes.plot([median, late], [height, height], color=color, linewidth=2.4)
                axes.plot(median, height, "o", markersize=6, markerfacecolor=theme.paper, markeredgecolor=color)
                axes.plot(late, height, "o", markersize=6, color=color)
            for at, name, align in ((BUDGET_MS, "budget ", "right"), (BOUND_MS, " 1.25 times that", "left")):
                axes.axvline(at, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
                axes.text(at, len(shown) - 0.4, name, color=theme.quiet, fontsize=SMALL_PT, ha=align)
            axes.set_yticks(range(len(shown)), [line.condition for line in shown])
            axes.set_ylim(-0.6, len(shown) - 0.1)
            axes.set_xlim(0, 1.35 * max([BOUND_MS, *(line.seen.quantile_ms(0.99) for line in shown)]))
            axes.set_xlabel("milliseconds")
            path = page.with_name(page.stem + ending)
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            yield path
