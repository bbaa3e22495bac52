"""How a semantic cache would err, and what a look-up in one costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loadtests.bench.semantic.cost import SIZES, lookup_us, redis_us
from loadtests.bench.semantic.measure import CONFIDENCE, MOST_WRONG, Lookup, Point, chosen, curve, look_up, read
from loadtests.bench.table import NoOptions
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result
from services.retrieval.minilm import Floats, MiniLM, find_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

SHOWN = 12
ALT = "Paraphrases found and wrong hits over the threshold"
QUESTION = "Is the nearest question the same question?"
METHOD = """\
The cache holds the first question of every group. Each paraphrase and each near miss is looked up: the nearest kept
question answers, if the cosine of the two reaches the threshold. It is a wrong hit if that is another question, by the
groups as they were written by hand (`loadtests/bench/semantic/questions.yaml`). Half of the look-ups are near misses:
negations, other numbers, other names, the opposite. That is harder than traffic, on purpose: how many of a tenant's
questions look alike and differ is not known beforehand, and it is a tenant who asks such questions that gets a wrong
answer.

The rate of wrong hits has to stay at or below 1 % of all look-ups, not as it was seen but by the upper end of its
one-sided 95 % confidence interval, at a threshold and at all above it. Look-ups of one group are not wholly
independent, which makes that bound a little too low.
"""
COSTS = """\
Processor time, the median: of a look-up in the process, and of what a client of Redis spends on a round trip, were the
vectors there. The server's own time and the way to it come on top.
"""


def verdict(best: Point | None) -> str:
    """What follows from the curve, in a sentence or two."""
    if best is None or best.hits == 0:
        start = (
            f"**No threshold is both safe and of use.** At most {MOST_WRONG:.0%} wrong hits are allowed; "
            + ("no threshold reaches that" if best is None else f"only from {best.threshold:.2f} on is that so")
            + ", and there not one paraphrase is found."
        )
        return start + " The semantic cache is off by default: `SEMANTIC_THRESHOLD` is 0."
    return (
        f"**{best.threshold:.2f} is the lowest safe threshold:** {best.hit_rate:.1%} of the paraphrases are found, and "
        f"at most {best.wrong_at_most:.1%} of all look-ups are answered wrongly ({best.wrong} of {best.lookups} seen)."
    )


def measure(options: NoOptions, say: Say) -> Result:
    """Look up every question of the set, and time look-ups."""
    model = MiniLM(find_model(""))

    def embed(texts: Sequence[str]) -> Floats:
        return model.embed([model.tokenize(text) for text in texts])

    found = look_up(read(), embed)
    say("all questions are looked up")
    costs_us = {f"a look-up among {entries:,} questions": lookup_us(entries) for entries in SIZES} | redis_us()
    return result(curve(found), found, costs_us, on=f"model {model.name}, {model.fingerprint}")


def result(points: Sequence[Point], found: Sequence[Lookup], costs_us: Mapping[str, float], *, on: str = "") -> Result:
    """As a page; the costs are figures for the record."""
    best = chosen(points)
    rates = (
        "threshold:", "paraphrases found:", "wrong hits:", "of all look-ups:",
        f"with {CONFIDENCE:.0%} confidence at most:"
    )  # fmt: skip
    wrong = sorted((each for each in found if not each.right), key=lambda each: -each.cosine)
    far = sorted((each for each in found if each.right), key=lambda each: each.cosine)
    blocks: list[Block] = [
        verdict(best), Plot(ALT, lambda theme: _drawn(points, theme)), METHOD, table(rates, map(_row, points)),
        "## What is taken for the same\n\nThe look-ups nearest to a question with another answer:",
        table(("cosine:", "asked", "taken for"), map(_lookup, wrong[:SHOWN])),
        "And paraphrases that are far from what they say again:",
        table(("cosine:", "asked", "said before as"), map(_lookup, far[: SHOWN // 2])),
        "## What a look-up costs\n\n" + COSTS,
        table(("", "microseconds:"), ((what, f"{spent:,.0f}") for what, spent in costs_us.items())),
    ]  # fmt: skip
    figures = [Figure(what, spent, "us") for what, spent in costs_us.items()]
    return Result("How a semantic cache would err", {"what a look-up costs": figures}, blocks, on)


def _row(point: Point) -> tuple[str, ...]:
    return (
        f"{point.threshold:.2f}", f"{point.hit_rate:.1%}", str(point.wrong), f"{point.wrong_rate:.1%}",
        f"{point.wrong_at_most:.1%}",
    )  # fmt: skip


def _lookup(found: Lookup) -> tuple[str, ...]:
    return f"{found.cosine:.3f}", found.question, found.nearest


def _drawn(points: Sequence[Point], theme: Theme) -> Drawing:
    """What a threshold finds, and what it gets wrong."""
    from loadtests.report.style import SMALL_PT, headline, sheet

    at = [point.threshold for point in points]
    figure, (axes,) = sheet(1, left=0.07, right=0.78)
    note = f"{points[0].paraphrases} paraphrases and {points[0].near_misses} near misses, all-MiniLM-L6-v2."
    headline(figure, theme, QUESTION, note)
    for name, values, color, above in (
        ("answered wrongly,\nof all look-ups", [100 * point.wrong_rate for point in points], theme.wasted, 6),
        ("paraphrases found", [100 * point.hit_rate for point in points], theme.weir, 2),
    ):
        axes.plot(at, values, color=color, linewidth=2.4)
        axes.text(at[-1] + 0.004, values[-1] + above, name, color=color, va="bottom")
    axes.axhline(100 * MOST_WRONG, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(at[0], 100 * MOST_WRONG + 0.6, "allowed: 1 %", color=theme.quiet, fontsize=SMALL_PT)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(0, None)
    axes.set_xlabel("threshold of the cosine")
    axes.set_ylabel("% of questions")
    return figure
