"""A soak as a page, and as lines."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.report.page import head, table
from loadtests.runs.soak.judging import KINDS, Trend
from loadtests.runs.soak.load import (
    BURST_PER_S,
    BURST_S,
    HURRIED,
    HURRIED_DEADLINE_MS,
    LEAVE_AFTER_MS,
    LEAVERS,
    PER_S,
    QUESTIONS,
    ROUND_S,
)
from loadtests.runs.soak.run import LOOK_EVERY_S, Result

TITLE = "Soak: what grows under load that goes on"
INTRO = """\
**{verdict}**

The whole stack as real processes on loopback, under load for {minutes:g} minutes: {per_s:g} requests a second, `/ask`
and chat, half of them streamed, and every {round_s:g} s a burst of {burst_per_s:g} a second for {burst_s:g} s.
{leavers:.0%} of the clients leave after {leave_ms:g} ms, {hurried:.0%} ask for an answer in {hurried_ms:g} ms, which
cannot be. The {questions} questions come again and again, and a cached search is stale after 5 s: every path is used,
and every cache is full early.

Each process was looked at every {look_s:g} s, with its children. The first {warmup_s:.0f} s do not count: the allocator
takes what it will keep. Of every {round_s:g} s that follow the median counts, and the slope is that of the straight
line that fits the medians best (least squares).

{ended}
"""
COLUMNS = ("Process", "Held", "At first:", "At last:", "A minute:", "At most:", "")
OUTRO = """
*Memory* is resident memory without what processes share on purpose, such as PostgreSQL's buffers. *Tasks* are those of
the process's event loop, by its own metric `python_asyncio_tasks`. *At first* and *at last* are the first and the last
median.
"""


def page(result: Result, *, command: str, machine: str) -> str:
    """The whole page."""
    intro = INTRO.format(
        verdict=verdict(result), minutes=result.minutes, per_s=PER_S,
        round_s=ROUND_S, burst_per_s=BURST_PER_S, burst_s=BURST_S, leavers=LEAVERS, leave_ms=LEAVE_AFTER_MS,
        hurried=HURRIED, hurried_ms=HURRIED_DEADLINE_MS, questions=QUESTIONS, look_s=LOOK_EVERY_S,
        warmup_s=result.warmup_s, ended=ended(result),
    )  # fmt: skip
    return "\n".join([head(TITLE, command=command, machine=machine), intro, *table(COLUMNS, _rows(result)), OUTRO])


def verdict(result: Result) -> str:
    """In one line."""
    found = [trend for some in result.trends.values() for trend in some]
    growing = sum(not trend.flat for trend in found)
    steepest = max((trend.per_minute for trend in found if trend.kind is KINDS[0]), default=0.0)
    word = "Held" if result.held else "Not held"
    if not result.long_enough:
        word = f"{word}, and too short to tell what grows"
    return (
        f"{word}: {growing} of {len(found)} lines grow beyond their bound; "
        f"the steepest memory grows by {steepest:.2f} MB a minute."
    )


def ended(result: Result) -> str:
    """How the requests did."""
    counted = ", ".join(f"{count:,} {name}" for name, count in result.heard.verdicts.most_common())
    return (
        f"{counted}, {result.heard.left:,} left. Answers that must never be: {result.heard.wrong}. "
        f"Places that the router still held at the end: {result.left:g}."
    )


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    for name, found in result.trends.items():
        for trend in found:
            yield (name, trend.kind.name, *_figures(trend), "held" if trend.flat else "**grows**")


def _figures(trend: Trend) -> tuple[str, ...]:
    return (
        f"{trend.first:.1f}", f"{trend.last:.1f}", f"{trend.per_minute:+.2f}", f"{trend.kind.most_per_minute:g}",
    )  # fmt: skip


def lines(result: Result) -> Iterator[str]:
    """The same for the terminal."""
    for name, kind, first, last, slope, most, word in _rows(result):
        yield f"  {name:<12}{kind:<14}{first:>9}{last:>9}{slope:>9} a minute (at most {most})  {word.strip('*')}"
    yield f"  {ended(result)}"
    yield verdict(result)
