"""The same scenarios in the simulator: the scheduler alone on a virtual clock, beside the policies of the file."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadtests.report.figure import Figure
from loadtests.scenarios.model import find, load_raw
from loadtests.scenarios.stages import on_stage, reason_against
from loadtests.simulator.readings import READ, min_on_time
from loadtests.simulator.results import Cell, Comparison, compare
from loadtests.simulator.runs import execute, plan
from loadtests.simulator.targets import targets


class PolicyRow(msgspec.Struct, frozen=True):
    """One policy: shares of the distinct requests, averaged over the seeds; None without samples."""

    policy: str
    load: float | None
    on_time: float | None
    goodput: float | None
    wait_p95_ms: float | None
    latency_p95_ms: float | None
    refused: float | None
    in_vain: float | None
    groups: dict[str, float] = {}
    """Share on time of each group's worst tenant, if there are several groups."""


class Simulated(msgspec.Struct, frozen=True):
    """One scenario: its policies at the greatest load, and Weir's targets."""

    rows: list[PolicyRow]
    figures: list[Figure] = []


def can(name: str) -> bool:
    return not reason_against(load_raw(find(name)), "simulator")


def simulate(name: str, jobs: int) -> Simulated:
    """Play the scenario with `jobs` processes. Raises LabError if the file has a fault."""
    scenario = on_stage(name, "simulator")
    comparison = compare(name, scenario, execute(plan(scenario), jobs))
    rows = [_row(comparison, cell) for cell in comparison.at(comparison.loads[-1])]
    return Simulated(rows, targets(comparison))


def _row(comparison: Comparison, cell: Cell) -> PolicyRow:
    return PolicyRow(
        policy=cell.policy,
        load=cell.load,
        on_time=cell.mean(READ["on_time"]),
        goodput=cell.mean(READ["goodput"]),
        wait_p95_ms=_ms(cell.mean(READ["wait_p95_s"])),
        latency_p95_ms=cell.mean(READ["p95_ms"]),
        refused=cell.mean(READ["refused"]),
        in_vain=cell.mean(READ["in_vain"]),
        groups=dict(_groups(comparison, cell)),
    )


def _groups(comparison: Comparison, cell: Cell) -> Iterator[tuple[str, float]]:
    groups = comparison.scenario.tenants
    for group in groups if len(groups) > 1 else ():
        share = cell.mean(min_on_time(comparison.scenario, group.name))
        if share is not None:
            yield group.name, share


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
