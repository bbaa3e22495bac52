"""Reports grouped by policy and load, for the table, the JSON and the plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.scenarios.model import Scenario
from loadtests.simulator.readings import Read, mean_known
from loadtests.simulator.report import PolicyReport, Series


@dataclass(frozen=True, slots=True)
class Cell:
    policy: str
    load: float | None
    reports: tuple[PolicyReport, ...]

    def mean(self, figure: Read) -> float | None:
        """The mean over the seeds that have this figure; None if no seed has it."""
        return mean_known(map(figure, self.reports))

    def series(self, read: Callable[[Series], Sequence[float | None]]) -> list[float | None]:
        """The mean over the seeds, per bucket."""
        columns = zip(*(read(report.series) for report in self.reports), strict=False)
        return [mean_known(column) for column in columns]


@dataclass(frozen=True, slots=True)
class Comparison:
    name: str
    scenario: Scenario
    cells: tuple[Cell, ...]

    @property
    def policies(self) -> list[str]:
        return list(dict.fromkeys(cell.policy for cell in self.cells))

    @property
    def loads(self) -> list[float | None]:
        return list(dict.fromkeys(cell.load for cell in self.cells))

    @property
    def seeds(self) -> list[int]:
        return sorted({report.seed for cell in self.cells for report in cell.reports})

    def at(self, load: float | None) -> list[Cell]:
        return [cell for cell in self.cells if cell.load == load]

    def of(self, policy: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.policy == policy]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "scenario": self.scenario.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "runs": [report.to_json() for cell in self.cells for report in cell.reports],
        }


def compare(name: str, scenario: Scenario, reports: Iterable[PolicyReport]) -> Comparison:
    """Group reports, in the order of loads and of the scenario's policies."""
    found: dict[tuple[float | None, str], list[PolicyReport]] = {}
    for report in sorted(reports, key=lambda report: report.seed):
        found.setdefault((report.load, report.policy), []).append(report)
    cells = [
        Cell(choice.name, load, tuple(found[load, choice.name]))
        for load in loads(scenario)
        for choice in scenario.policies
        if (load, choice.name) in found
    ]
    return Comparison(name, scenario, tuple(cells))


def loads(scenario: Scenario) -> tuple[float | None, ...]:
    return tuple(sorted(scenario.sweep.loads)) if scenario.sweep else (None,)
