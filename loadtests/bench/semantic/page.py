"""The page docs/results/semantic.md."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.bench.semantic.measure import CONFIDENCE, MOST_WRONG, Lookup, Point
from loadtests.report.page import head
from loadtests.report.page import picture as drawn

SHOWN = 12
ALT = "Paraphrases found and wrong hits over the threshold"
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


def page(
    points: Sequence[Point],
    best: Point | None,
    found: Sequence[Lookup],
    costs_us: dict[str, float],
    *,
    where: str,
    picture: bool,
) -> str:
    """The whole page."""
    lines = [
        head("How a semantic cache would err", command="python -m loadtests.bench.semantic", machine=where),
        verdict(best),
        "",
        *([drawn("semantic", ALT), ""] if picture else []),
        METHOD,
        f"| threshold | paraphrases found | wrong hits | of all look-ups | with {CONFIDENCE:.0%} confidence at most |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [_row(point) for point in points]
    lines += ["", "## What is taken for the same", "", "The look-ups nearest to a question with another answer:", ""]
    lines += ["| cosine | asked | taken for |", "|---:|---|---|"]
    wrong = sorted((each for each in found if not each.right), key=lambda each: -each.cosine)
    lines += [f"| {each.cosine:.3f} | {each.question} | {each.nearest} |" for each in wrong[:SHOWN]]
    lines += ["", "And paraphrases that are far from what they say again:", ""]
    lines += ["| cosine | asked | said before as |", "|---:|---|---|"]
    far = sorted((each for each in found if each.right), key=lambda each: each.cosine)
    lines += [f"| {each.cosine:.3f} | {each.question} | {each.nearest} |" for each in far[: SHOWN // 2]]
    lines += ["", "## What a look-up costs", "", COSTS]
    lines += ["| | microseconds |", "|---|---:|"]
    lines += [f"| {what} | {microseconds:,.0f} |" for what, microseconds in costs_us.items()]
    return "\n".join(lines) + "\n"


def _row(point: Point) -> str:
    return (
        f"| {point.threshold:.2f} | {point.hit_rate:.1%} | {point.wrong} | {point.wrong_rate:.1%} "
        f"| {point.wrong_at_most:.1%} |"
    )
