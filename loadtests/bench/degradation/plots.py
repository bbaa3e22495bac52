"""Two plots: what is answered at each load, by ladder, and the level of the answers from second to second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from loadtests.bench.degradation.ladders import LADDERS, OFF, RETRIEVAL, WHOLE
from loadtests.bench.degradation.measure import LOADS, Measured
from loadtests.report.result import Plot
from services.core.ladder import LADDER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from loadtests.report.style import Theme

GOODPUT = "Answers on time for each load: without a ladder, with degraded retrieval only, and with the whole ladder."
LEVELS = "The mean level of the answers in each second, for each load, with the whole ladder."
DASHES = {OFF: (0, (1.2, 1.4)), RETRIEVAL: (0, (6, 1.6)), WHOLE: (0, ())}


def plots(measured: Measured) -> Iterator[Plot]:
    """Of all that was measured."""
    yield Plot(GOODPUT, lambda theme: _goodput(measured, theme))
    yield Plot(LEVELS, lambda theme: _levels(measured, theme), "-level")


def _goodput(measured: Measured, theme: Theme) -> Figure:
    from loadtests.report.style import SMALL_PT, headline, sheet, spread

    figure, axes = sheet(2, left=0.08, right=0.83)
    note = "Open loop, real processes; the workers are the bottleneck."
    headline(figure, theme, "What is answered when more is asked for than can be done?", note)
    capacity = measured.capacity_per_s
    sides = (("answers on time", "on_time_per_s"), ("the same, weighed by their worth", "worth_per_s"))
    most = max(getattr(run, of) for run in measured.workers.values() for _, of in sides)
    for side, (title, of) in zip(axes, sides, strict=True):
        ends = {}
        for ladder in LADDERS:
            values = [getattr(measured.workers[load, ladder], of) for load in LOADS]
            side.plot(LOADS, values, color=_color(ladder, theme), linestyle=DASHES[ladder], linewidth=2.2)
            ends[ladder] = values[-1]
        side.axhline(capacity, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
        side.text(0, 1.01, title, transform=side.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")
        side.set_xlabel("load, times capacity")
    heights = spread(list(ends.values()), 0.055 * most, 0, 1.1 * most)
    for ladder, height in zip(ends, heights, strict=True):
        axes[-1].text(LOADS[-1] + 0.06, height, ladder, color=_color(ladder, theme), va="center")
    axes[0].text(LOADS[0], 0.97 * capacity, " capacity in full", color=theme.quiet, fontsize=SMALL_PT, va="top")
    axes[0].set_ylabel("per second")
    axes[0].set_ylim(0, 1.1 * most)
    axes[0].set_xlim(LOADS[0], LOADS[-1])
    return figure


def _levels(measured: Measured, theme: Theme) -> Figure:
    from loadtests.report.style import headline, sheet, spread

    figure, (axes,) = sheet(1, left=0.07, right=0.84)
    headline(figure, theme, "How far do the answers go down?", "Mean level of the answers to each second's questions.")
    ends = []
    for load, color in zip(LOADS, theme.tenants, strict=False):
        times, levels = zip(*measured.workers[load, WHOLE].level_over_time, strict=True)
        axes.plot(times, levels, color=color, linewidth=2.2)
        ends.append((levels[-1], f"{load:g} times", color, times[-1]))
    top = len(LADDER) - 1
    for height, (_, name, color, at) in zip(spread([end[0] for end in ends], 0.22, 0, top), ends, strict=True):
        axes.text(at + 0.2, height, name, color=color, va="center")
    axes.set_ylim(-0.1, top + 0.1)
    axes.set_yticks(range(top + 1))
    axes.set_xlim(0, max(end[3] for end in ends))
    axes.set_xlabel("seconds")
    axes.set_ylabel("level")
    return figure


def _color(ladder: str, theme: Theme) -> str:
    return {OFF: theme.wasted, RETRIEVAL: theme.useful, WHOLE: theme.weir}[ladder]
