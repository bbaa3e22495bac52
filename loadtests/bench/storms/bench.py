"""The storm bench's scenarios with mechanisms off and with all of them on, before real processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from loadtests.bench.storms.stack import standing
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Result
from loadtests.storm.report_words import milliseconds, percent, policy_words
from services.contracts.storm import Run, Second

ALL = ("admission", "fairness", "cancellation")
PLAYS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("burst", (ALL, ("admission",), ())),
    ("noisy_neighbour", (ALL, ("fairness",), ())),
    ("retry_storm", (ALL, ("cancellation",), ())),
    ("slow_worker", (ALL, ())),
)
BACK_SHARE = 0.9
"""So much of what ends is an answer on time: all is well again."""
STEADY_S = 3


@dataclass(frozen=True, slots=True)
class Played:
    """One run, and what was asked of it."""

    run: Run
    off: tuple[str, ...]


def back_after_s(run: Run) -> float | None:
    """Seconds from the last thing that changed until answers are on time again, and stay so; None: not in this run.

    Looked at in windows of three seconds, since few requests end in one.
    """
    ended_s = max((mark.s for mark in run.marks), default=0.0)
    rows = run.series[: int(run.seconds)]
    well = [_well(rows[at : at + STEADY_S]) for at in range(len(rows) - STEADY_S + 1)]
    for at in range(int(ended_s), len(well)):
        if all(well[at:]):
            return max(0.0, round(at - ended_s, 1))
    return None


def _well(window: Sequence[Second]) -> bool:
    on_time = sum(second.on_time for second in window)
    ended = sum(one.on_time + one.late + one.refused + one.failed + one.gone for one in window)
    return ended > 0 and on_time >= BACK_SHARE * ended


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    only: Annotated[tuple[str, ...], msgspec.Meta(description="this scenario; may be given again")] = ()
    seconds: Annotated[float, msgspec.Meta(ge=10, le=60, description="length of each run")] = 30.0


QUICK = {"only": ("burst",), "seconds": 10.0}


async def measure(options: Options, say: Say) -> Result:
    """Play every scenario with each choice of mechanisms."""
    played: list[Played] = []
    async with standing() as stack:
        for scenario, offs in PLAYS:
            for off in offs if not options.only or scenario in options.only else ():
                stack.switch(off)
                run = await stack.play(scenario, {"seconds": options.seconds})
                played.append(Played(run, off))
                say(f"{scenario:16} {policy_words(run.policy):40} on time {percent(run.on_time_share)}")
    return result(played)


def result(played: Sequence[Played]) -> Result:
    """As a page; how much came on time is a figure of each run, for the record."""
    blocks: list[Block] = [ABOUT]
    figures: dict[str, list[Figure]] = {}
    for scenario in dict.fromkeys(one.run.scenario for one in played):
        runs = [one.run for one in played if one.run.scenario == scenario]
        lag_ms = max(run.worst_lag_ms for run in runs)
        blocks += [
            f"## {runs[0].title}\n\n{runs[0].caption}",
            table([name for name, _ in COLUMNS], [tuple(cell(run) for _, cell in COLUMNS) for run in runs]),
            f"The bench sent no request more than {lag_ms:.0f} ms after it was meant to be.",
        ]
        figures[scenario] = [Figure(f"on time, {policy_words(run.policy)}", run.on_time, "requests") for run in runs]
    return Result("Storms: the collapse and the cure", figures, blocks)


def _people(run: Run) -> str:
    shares = {one.id: one.answered / one.asked for one in run.tenants if one.asked}
    return ", ".join(f"{id} {100 * share:.0f} %" for id, share in shares.items())


def _back(run: Run) -> str:
    if not run.marks:
        return ""
    seconds = back_after_s(run)
    return "not in this run" if seconds is None else f"{seconds:.0f} s"


COLUMNS = (
    ("policies", lambda run: policy_words(run.policy)),
    ("sent", lambda run: f"{run.sent:,}"),
    ("on time", lambda run: f"{run.on_time:,}"),
    ("of what the workers can do", lambda run: percent(run.goodput_share)),
    ("people answered on time", _people),
    ("95 % of answers within", lambda run: milliseconds(run.p95_ms)),
    ("worker time in vain", lambda run: percent(run.wasted_share)),
    ("on time again after", _back),
)
ABOUT = """\
The [storm bench](../architecture/storm-bench.md)'s scenarios against real processes: two simulated workers of eight
slots, a router, and the bench, with the defaults of every service. Each scenario is run with mechanisms
[switched off](../operations.md#switching-a-mechanism-off) and with all of them on, and meets the same people each time.

*Of what the workers can do*: answers on time a second, by the rate that the workers announce for answers of full
length. It passes 100 % where the router shortens answers rather than refuse. *Worker time in vain*: the router's
`weir_wasted_seconds_total`, as a share of the time of all slots. *On time again after*: seconds from the end of what
troubles it until, in every three seconds that follow, 90 % of the requests that end are answered on time.
"""
