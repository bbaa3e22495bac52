"""What a scenario's file wants to hold, as the simulator finds it of Weir. Windows are for stages that have them."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.report.figure import Figure
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Must, Scenario
from loadtests.simulator.readings import READ, Read, least_on_time
from loadtests.simulator.results import Cell, Comparison

WEIR = "weir"


def targets(comparison: Comparison) -> list[Figure]:
    """Of Weir, at the greatest load of a sweep; means over the seeds."""
    cells = [cell for cell in comparison.of(WEIR) if cell.load == comparison.loads[-1]]
    return [figure for cell in cells[:1] for figure in _of(comparison, cell)]


def _of(comparison: Comparison, cell: Cell) -> Iterator[Figure]:
    for must in comparison.scenario.must:
        if must.window is None and is_asked(must, "simulator") and (read := _read(comparison.scenario, must)):
            value = cell.mean(read)
            if value is not None:
                yield judged(must, value)


def _read(scenario: Scenario, must: Must) -> Read | None:
    """None where the simulator does not have the figure."""
    if must.of is None:
        return READ.get(must.figure)
    return least_on_time(scenario, must.of) if must.figure == "on_time" else None
