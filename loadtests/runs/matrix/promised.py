"""The simulator's promises as a part of the matrix: plays the missing cases, and makes a table for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.kept import Kept
from loadtests.runs.matrix.playing import clock
from loadtests.runs.matrix.sections import wrapped
from loadtests.simulator import promises
from loadtests.simulator.promises import OTHERS, Promise, Row

ABOUT = """\
Targets of the scheduler alone on a virtual clock, beside other policies: medians over four seeds, with the worst seed
in brackets if it differs; the worst seed decides. A figure without a target is for the record. These figures repeat
exactly, and show only what the design reaches under the assumptions of [the simulator](../simulator.md). Arrivals from
second 3 to 3 s before the end count. Loads are multiples of the capacity that is measured in the same run."""
COMMANDS = "Commands to play each case alone:"


def play(store: Kept, traces: Sequence[Path], jobs: int, say: Say) -> None:
    replays = [promises.replay(trace) for trace in traces]
    made = promises.table().also(case.name for case in replays)
    missing = [case for case in (*made.cases, *replays) if case.name not in store.series.promised]
    began = monotonic()
    for number, case in enumerate(missing):
        left = f", about {clock((monotonic() - began) / number * (len(missing) - number))} left" if number else ""
        say(f"In the simulator, promises, {number + 1} of {len(missing)}: {case.name}{left}")
        store.keep_promised(case.name, promises.play(made, case, jobs))


def figures(series: Series) -> dict[str, list[Figure]]:
    """The figures whose cases have all been played, by the title of their row."""
    return {row.title: [each.figure(series.promised) for each in some] for row, some in _played(series)}


def _played(series: Series) -> Iterator[tuple[Row, list[Promise]]]:
    known = promises.table()
    made = known.also(sorted(series.promised.keys() - {case.name for case in known.cases}))
    for row in made.promises:
        some = [promise for promise in made.of(row) if series.promised.keys() >= set(promise.read)]
        if some:
            yield row, some


def section(series: Series) -> Iterator[str]:
    if not series.promised:
        return
    yield "## Promises in the simulator\n"
    yield ABOUT + "\n"
    for row, some in _played(series):
        yield f"### {row.title}\n"
        yield wrapped(row.how) + "\n"
        yield from table(
            ("figure", "weir:", "target:", "", *(f"{name}:" for name in OTHERS)),
            (_line(promise, series) for promise in some),
        )
        yield ""
    yield COMMANDS + "\n"
    yield from table(("case", "command"), ((case.name, _command(case)) for case in promises.table().cases))
    yield ""


def _line(promise: Promise, series: Series) -> list[str]:
    figure = promise.figure(series.promised)
    values = [promise.formatted(series.promised, policy) for policy in (promise.judged, *OTHERS)]
    return [figure.name, values[0], figure.wanted, figure.verdict, *values[1:]]


def _command(case: promises.Case) -> str:
    without = f" (without {', '.join(case.without)})" if case.without else ""
    return f"`{case.command}`{without}"
