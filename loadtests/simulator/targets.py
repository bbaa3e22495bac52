"""The targets of a scenario's file, judged for Weir. Targets with a window are left to the stages that have windows."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.report.figure import Figure
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Must, Scenario
from loadtests.simulator.readings import READ, Read, min_on_time
from loadtests.simulator.results import Cell, Comparison

WEIR = "weir"


def targets(comparison: Comparison) -> list[Figure]:
    """Weir's mean over the seeds, at the greatest load."""
    cells = [cell for cell in comparison.of(WEIR) if cell.load == comparison.loads[-1]]
    return [figure for cell in cells[:1] for figure in _of(comparison, cell)]


def _of(comparison: Comparison, cell: Cell) -> Iterator[Figure]:
    for must in comparison.scenario.must:
        if must.window is None and is_asked(must, "simulator") and (read := _read(comparison.scenario, must)):
            value = cell.mean(read)
            if value is not None:
                yield judged(must, value)


def _read(scenario: Scenario, must: Must) -> Read | None:
    """None for a figure that the simulator does not have."""
    if must.of is None:
        return READ.get(must.figure)
    return min_on_time(scenario, must.of) if must.figure == "on_time" else None
