"""Results as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.load.capacity import Capacity
from loadtests.report.figure import Figure
from loadtests.report.figure import summary as figures_summary
from loadtests.report.page import figures_table, head
from loadtests.runs.drill import Run
from loadtests.runs.fire.cases import Case

MOST_PLAYS = 4
TITLE = "The router under fire"
INTRO = """\
{summary}

Real processes on loopback: simulated workers of a known service time with 10 % jitter, one router with its default
settings and a tenants file, and an open-loop client: arrivals are Poisson, they do not wait for answers, and latency
counts from the moment at which each request should have been sent. Answers may not be cut. Loads are multiples of the
capacity that a closed loop, one client for each slot, finds at the workers themselves just before; a light tenant's
load is below its share of it. Goodput is the tokens of answers on time, over that capacity; longer answers than those
it was measured with can bring it above 1, since a slot loses up to a step between two of them. Those requests count
that arrive from second 3 to 3 s before the end (burst and storms: 1 s before it).

All processes and the client share {cores} cores. The last three lines of each table tell whether a case can be
believed: where more than 5 % of the requests left the client itself over 20 ms late, it measured the machine. Such a
case waits for a calmer moment and is played again, at most {plays} times in all; the last play is shown, whatever it
says. How a load is run and judged: [loadtests](../../loadtests/README.md#open-loop).
"""


@dataclass(frozen=True)
class Result:
    """A case that has been played, or the reason why it could not be."""

    case: Case
    capacity: Capacity | None
    figures: Sequence[Figure]
    runs: Sequence[Run]
    fault: str = ""
    plays: int = 1

    @property
    def believable(self) -> bool:
        """The client kept its times: what was measured is the server."""
        return all(run.figures.generator_late <= run.plan.max_late_share for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "shape": str(self.case.shape),
            "capacity_per_s": None if self.capacity is None else self.capacity.per_s,
            "figures": [figure.as_dict() for figure in self.figures],
            "runs": [run.as_dict() for run in self.runs],
            "fault": self.fault,
            "plays": self.plays,
        }


def summary(results: Sequence[Result]) -> str:
    """How many targets held."""
    faults = sum(bool(result.fault) for result in results)
    broken = f" {faults} cases could not be played." if faults else ""
    return figures_summary(figure for result in results for figure in result.figures) + broken


def page(results: Sequence[Result], *, command: str, machine: str, cores: int) -> str:
    """The whole page."""
    intro = INTRO.format(cores=cores, summary=summary(results), plays=MOST_PLAYS)
    return "\n".join(
        [
            head(TITLE, command=command, machine=machine),
            intro,
            *(line for result in results for line in _section(result)),
        ]
    )


def _section(result: Result) -> Iterator[str]:
    case = result.case
    yield f"## {case.name.replace('_', ' ').capitalize()}"
    again = f" Played {result.plays} times." if result.plays > 1 else ""
    yield f"{case.about[0].upper()}{case.about[1:]}.{again}"
    yield ""
    if result.fault:
        yield f"Could not be played: {result.fault.splitlines()[0]}"
        yield ""
        return
    if result.capacity is not None:
        yield f"{case.shape}; capacity {result.capacity.per_s:.1f} answers/s."
        yield ""
    yield from figures_table(result.figures)
    yield ""


def lines(result: Result) -> Iterator[str]:
    """A case for the terminal."""
    if result.fault:
        yield f"  could not be played: {result.fault}"
        return
    for figure in result.figures:
        verdict = figure.verdict.strip("*")
        yield f"  {verdict:<7}{figure.name:<46} {figure.shown:>12}  {figure.wanted:<12} {figure.note}".rstrip()
