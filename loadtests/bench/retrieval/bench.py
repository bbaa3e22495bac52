"""Retrieval's benchmark: latency under faults, throughput, the cost of embedding, and the page."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from loadtests.bench.retrieval import measure as measuring
from loadtests.bench.retrieval.load import KNOWN, NEW, REFRESHED
from loadtests.bench.retrieval.measure import BOUND_MS, RATES, Line
from loadtests.bench.retrieval.stand import BUDGET_MS, standing
from loadtests.report.figure import Figure, held, number
from loadtests.report.page import figures_table, table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

ALT = "Median and 99th percentile of a retrieval by condition, and its budget"
QUESTION = "Does an answer come in time, whatever is wrong?"
NOTE = "A retrieval's latency from the median (ring) to the 99th percentile (dot), from its intended send time."
CONDITIONS_TABLE = (
    "Condition", "p50 ms:", "p99 ms:", "Max ms:", "", "Answers from", "Because", "Client late, p99 ms:",
    "Recovered after s:",
)  # fmt: skip
CONDITIONS = """\
## Every condition under the same load

A retrieval has a budget of {budget} ms, and 99 of 100 answers have to arrive within {bound:g} ms. Questions are sent at
{rate:g} a second (Poisson) without waiting for answers: {known:g} that are known, {refreshed:g} that are known but
accept kept answers only if a search fails, and {new:g} that are new. Time counts from the intended send time; a
question without an answer counts as infinite. The client's own lateness is part of that time, and has its own column.

Each condition lasts {seconds:g} s under load. Counting starts at the moment of the fault, so the first affected
questions are included. The last column is the time until the service had fully recovered afterwards.
"""
SPEED = """\
## Throughput, and the cost of embedding

The tenant has {rows:,} chunks, searched through the graph. "Precomputed vectors" is the service with an embedder that
only looks them up; what remains is HTTP, cache, database and the rest. Cached retrievals count if they came from the
cache, uncached ones if they came from the database, both within their budget of {budget} ms. A closed loop sends again
after each answer; an open one sends at its rate. The client, the service, the database and the cache share all cores.
"""


class Options(msgspec.Struct, frozen=True):
    rows: Annotated[int, msgspec.Meta(ge=1_000, description="chunks of the tenant")] = 100_000
    seconds: Annotated[float, msgspec.Meta(ge=2, le=300, description="duration of each load")] = 20.0


QUICK = {"rows": 1_000, "seconds": 2.0}


async def measure(options: Options, say: Say) -> Result:
    rows, seconds = options.rows, options.seconds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with standing(Path(folder)) as stand:
            say(f"{rows:,} rows stored in {await stand.fill(rows):.0f} s")
            speed = await measuring.speed(stand, seconds)
            say("throughput measured")
            lines = await measuring.conditions(stand, seconds, say)
            speed += await measuring.embedder(stand, seconds)
    return result(lines, speed, options)


def result(lines: Sequence[Line], speed: Sequence[Figure], options: Options) -> Result:
    conditions = measuring.figures(lines)
    about = CONDITIONS.format(
        budget=BUDGET_MS, bound=BOUND_MS, rate=sum(RATES.values()), known=RATES[KNOWN], refreshed=RATES[REFRESHED],
        new=RATES[NEW], seconds=options.seconds,
    )  # fmt: skip
    blocks: list[Block] = [
        f"**Conditions in which the limit on p99 has to hold: {held(conditions)}** Of the other figures: {held(speed)}",
        Plot(ALT, lambda theme: _drawn(lines, theme)),
        about, table(CONDITIONS_TABLE, map(_row, lines, conditions)),
        SPEED.format(rows=options.rows, budget=BUDGET_MS), figures_table(speed),
    ]  # fmt: skip
    return Result("Retrieval under faults", {"conditions": conditions, "speed": speed}, blocks)


def _row(line: Line, figure: Figure) -> tuple[str, ...]:
    seen = line.seen
    mix = seen.mix + (f"; {seen.unanswered} not answered" if seen.unanswered else "")
    return (
        line.condition, *(number(seen.quantile_ms(q)) for q in (0.5, 0.99, 1.0)), figure.verdict,
        mix, seen.why, number(seen.late_quantile_ms(0.99)), number(line.recovered_s),
    )  # fmt: skip


def _drawn(lines: Sequence[Line], theme: Theme) -> Drawing:
    from loadtests.report.style import SMALL_PT, headline, sheet

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
    return figure
