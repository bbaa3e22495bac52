"""A picture of the burst, from /metrics: what runs, what has run, and who was told to come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes

from loadtests.bench.governor.burst import Burst
from loadtests.report.style import DARK, LIGHT, SMALL_PT, Theme, headline, settings, sheet

QUESTION = "More clients than slots: what runs?"


def draw(once: Burst, again: Burst, page: Path) -> Iterator[Path]:
    """Beside `governor.md`: `governor.svg` and, for dark pages, `governor-dark.svg`."""
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            figure, (left,) = sheet(1, left=0.07, right=0.47)
            place = left.get_position()
            right = figure.add_axes((0.56, place.y0, 0.41, place.height))
            told = (
                f"{once.clients} clients at once, cap {once.cap}. Who is told to come back leaves, or does come back."
            )
            headline(figure, theme, QUESTION, told)
            _panel(left, once, f"jobs of {once.stub_s:g} s, told once", theme)
            left.legend(frameon=False, fontsize=SMALL_PT, loc="center right")
            _panel(right, again, f"jobs of {again.stub_s:g} s, coming back when told to", theme)
            path = page.with_name(page.stem + ending)
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            yield path


def _panel(axes: Axes, burst: Burst, title: str, theme: Theme) -> None:
    times = [state.at_s for state in burst.states]
    top = burst.clients * 1.08
    for name, values, color in (
        ("yielded", [state.yielded for state in burst.states], theme.wasted),
        ("executed", [state.executed for state in burst.states], theme.useful),
        ("inflight", [state.inflight for state in burst.states], theme.weir),
    ):
        axes.step(times, values, where="post", color=color, linewidth=2.2 if name == "inflight" else 1.6, label=name)
    axes.set_ylim(0, top)
    axes.set_yticks(range(0, burst.clients + 1, max(1, burst.clients // 4)))
    axes.set_xlim(0, times[-1])
    axes.set_xlabel("seconds")
    most = burst.states[-1].yielded
    beyond = f"; {most} yields in all" if most > top else ""
    axes.text(0, 1.01, title + beyond, transform=axes.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")
