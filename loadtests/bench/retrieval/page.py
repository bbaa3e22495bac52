"""The page docs/results/retrieval.md."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.bench.retrieval.budget import BOUND_MS, RATES, Line
from loadtests.bench.retrieval.load import ANEW, KNOWN, NEW
from loadtests.bench.retrieval.stand import BUDGET_MS
from loadtests.report.figure import Figure, number
from loadtests.report.page import figures_table, table
from loadtests.report.page import picture as drawn

ALT = "Median and 99th percentile of a retrieval by condition, and its budget"
CONDITIONS_TABLE = (
    "Condition", "p50 ms:", "p99 ms:", "Most ms:", "", "Answers from", "Because", "Client late, p99 ms:",
    "Well after s:",
)  # fmt: skip
HEAD = """\
# Retrieval, in time whatever is wrong

Written by `{command}`, on {machine}.

{verdict}
"""
CONDITIONS = """\
## Every condition under the same load

A retrieval has {budget} ms, and 99 of 100 answers have to be there within {bound:g} ms. Questions come at
{rate:g} a second (Poisson) whether or not the ones before were answered: {known:g} that are known, {anew:g} that are
known from someone who will have nothing that is kept unless a search fails, and {new:g} that nobody has asked before.
Time is counted from the moment at which a question should have been sent; whatever is not answered counts as never. By
how much the client itself was late is part of that time, and told in its own column.

Each condition lasts {seconds:g} s under load. What is counted begins in the moment in which it strikes, so the first
questions that meet it are in. The last column is how long the service took to be wholly well again afterwards.
"""
SPEED = """\
## How many a second, and what embedding costs

The tenant has {rows:,} chunks, searched through the graph. "Vectors made before" is the service with an embedder that
only looks them up: what is left is HTTP, cache, database and the rest. Cached retrievals count if they came from the
cache, uncached ones if they came from the database, both within their budget of {budget} ms. A closed loop asks again
when it is answered; an open one asks at its rate. The client, the service, the database and the cache share all cores.
"""


def page(
    lines: Sequence[Line],
    figures: Sequence[Figure],
    *,
    command: str,
    machine: str,
    rows: int,
    seconds: float,
    picture: str,
) -> str:
    """The whole page."""
    conditions = CONDITIONS.format(
        budget=BUDGET_MS, bound=BOUND_MS, rate=sum(RATES.values()), known=RATES[KNOWN], anew=RATES[ANEW],
        new=RATES[NEW], seconds=seconds,
    )  # fmt: skip
    return "\n".join(
        [
            HEAD.format(command=command, machine=machine, verdict=_verdict(lines, figures)),
            *([drawn(picture, ALT), ""] if picture else []),
            conditions,
            *table(CONDITIONS_TABLE, map(_row, lines)),
            "",
            SPEED.format(rows=rows, budget=BUDGET_MS),
            *figures_table(figures),
            "",
        ]
    )


def _verdict(lines: Sequence[Line], figures: Sequence[Figure]) -> str:
    held = [line for line in lines if is_held(line)]
    told = f"**In {len(held)} of {len(lines)} conditions the bound on p99 held.**"
    with_target = [figure for figure in figures if figure.held is not None]
    return f"{told} Of the other targets, {sum(bool(each.held) for each in with_target)} of {len(with_target)} held."


def is_held(line: Line) -> bool:
    """Whether its p99 is within the bound."""
    return line.seen.quantile_ms(0.99) <= BOUND_MS


def _row(line: Line) -> tuple[str, ...]:
    seen = line.seen
    mix = seen.mix + (f"; {seen.unanswered} not answered" if seen.unanswered else "")
    return (
        line.condition, *(number(seen.quantile_ms(q)) for q in (0.5, 0.99, 1.0)), "held" if is_held(line) else "missed",
        mix, seen.why, number(seen.late_quantile_ms(0.99)), number(line.recovered_s),
    )  # fmt: skip
