"""A picture of a run: how many sequences share each step, with static batches and with continuous ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes

from loadtests.bench.batching.throughput import SLOTS, Occupancy
from loadtests.report.style import DARK, LIGHT, SMALL_PT, Theme, headline, settings, sheet

QUESTION = "How many sequences share a step?"
Steps = Sequence[tuple[float, int]]


def draw(seen: Occupancy, page: Path) -> Iterator[Path]:
    """Beside `batching.md`: `batching.svg` and, for dark pages, `batching-dark.svg`."""
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            figure, axes = sheet(2, left=0.07, right=0.97)
            headline(figure, theme, QUESTION, f"The same requests, the same engine of {SLOTS} slots. {seen.subject}.")
            for side, title, steps, color in (
                (axes[0], "static batches", seen.static, theme.wasted),
                (axes[1], "continuous", seen.continuous, theme.weir),
            ):
                _area(side, title, steps, color, theme)
            axes[0].set_ylabel("sequences in the step")
            axes[0].set_xlim(0, max(seen.static[-1][0], seen.continuous[-1][0]))
            axes[0].set_ylim(0, SLOTS + 0.5)
            axes[0].set_yticks(range(0, SLOTS + 1, 2))
            path = page.with_name(page.stem + ending)
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            yield path


def _area(axes: Axes, title: str, steps: Steps, color: str, theme: Theme) -> None:
    ends, counts = outline(steps)
    axes.stairs(counts, ends, fill=True, color=color, linewidth=0)
    axes.set_xlabel("seconds")
    over_s = ends[-1]
    name = f"{title}: {len(steps):,} steps, {over_s:.1f} s"
    axes.text(0, 1.01, name, transform=axes.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")


def outline(steps: Steps) -> tuple[list[float], list[int]]:
    """Edges and heights, with steps that were alike drawn as one."""
    ends, counts = [0.0], []
    for (end, count), after in zip(steps, [*(count for _, count in steps[1:]), None], strict=True):
        if count != after:
            ends.append(end)
            counts.append(count)
    return ends, counts
