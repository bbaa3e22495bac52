"""Runs side by side: what the table, the JSON and the plots read.

A result is one policy at one load with one seed. Figures of several seeds are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from loadtests.scenarios.model import Scenario
from loadtests.simulator.readings import Read
from loadtests.simulator.report import PolicyReport


@dataclass(frozen=True, slots=True)
class Result:
    """One run, and the sweep's load that it ran at (None: as the scenario says)."""

    load: float | None
    report: PolicyReport
    latency_p95_s: tuple[float | None, ...] = ()
    """Of the answers in each bucket of the time series."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load, with each of its seeds."""

    policy: str
    load: float | None
    results: tuple[Result, ...]

    @property
    def reports(self) -> list[PolicyReport]:
        return [result.report for result in self.results]

    def mean(self, figure: Read) -> float | None:
        """Over the seeds that have this figure."""
        return _mean([value for value in map(figure, self.reports) if value is not None])

    def series(self, read: Callable[[Result], Sequence[float | None]]) -> list[float | None]:
        """A time series, averaged over the seeds, bucket by bucket."""
        columns = zip(*(read(result) for result in self.results), strict=False)
        return [_mean([value for value in column if value is not None]) for column in columns]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A scenario and all of its results."""

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
            "runs": [_run(result) for cell in self.cells for result in cell.results],
        }


def _run(result: Result) -> dict[str, Any]:
    told = result.report.to_json()
    told["series"]["latency_p95_s"] = list(result.latency_p95_s)
    return {"load": result.load, **told}


def compare(name: str, scenario: Scenario, results: Iterable[Result]) -> Comparison:
    """Results in any order, put into the scenario's."""
    found: dict[tuple[float | None, str], list[Result]] = {}
    for result in results:
        found.setdefault((result.load, result.report.policy), []).append(result)
    cells = [
        Cell(choice.name, load, tuple(sorted(found[load, choice.name], key=lambda result: result.report.seed)))
        for load in loads(scenario)
        for choice in scenario.policies
        if (load, choice.name) in found
    ]
    return Comparison(name, scenario, tuple(cells))


def loads(scenario: Scenario) -> tuple[float | None, ...]:
    return tuple(sorted(scenario.sweep.loads)) if scenario.sweep else (None,)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
