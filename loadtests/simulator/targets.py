"""The targets of a scenario's file, judged for Weir. Targets with a window are left to the stages that have windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from loadtests.report.figure import Figure
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Must, Scenario, TenantGroup
from loadtests.simulator.readings import READ, Read, mean_known, members, min_on_time
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import Cell, Comparison

WEIR = "weir"
ONE_ROUTER = "one_router"


def targets(comparison: Comparison) -> list[Figure]:
    """Weir's mean over the seeds, at the greatest load."""
    load = comparison.loads[-1]
    weir = next((cell for cell in comparison.of(WEIR) if cell.load == load), None)
    one = next((cell for cell in comparison.of(ONE_ROUTER) if cell.load == load), None)
    return [] if weir is None else list(_of(comparison, weir, one))


def _of(comparison: Comparison, cell: Cell, one: Cell | None) -> Iterator[Figure]:
    for must in comparison.scenario.must:
        if must.window is None and is_asked(must, "simulator"):
            value = _value(comparison.scenario, must, cell, one)
            if value is not None:
                yield judged(must, value)


def _value(scenario: Scenario, must: Must, cell: Cell, one: Cell | None) -> float | None:
    """None for a figure that the simulator does not have, or without a policy to compare with."""
    if must.figure in COMPARED:
        read, compare = COMPARED[must.figure]
        group = None if must.of is None else _group(scenario, must.of)
        mine, its = (None if each is None else each.mean(lambda report: read(report, group)) for each in (cell, one))
        return None if mine is None or its is None else compare(mine, its)
    reading = _read(scenario, must)
    return None if reading is None else cell.mean(reading)


def _read(scenario: Scenario, must: Must) -> Read | None:
    if must.of is None:
        return READ.get(must.figure)
    if must.figure == "on_time":
        return min_on_time(scenario, must.of)
    if must.figure == "served_share":
        group = _group(scenario, must.of)
        return lambda report: sum(each.served_cost_share for each in members(report, group))
    return None


def _group(scenario: Scenario, name: str) -> TenantGroup:
    return next(each for each in scenario.tenants if each.name == name)


def _goodput(report: PolicyReport, _: TenantGroup | None) -> float | None:
    return report.goodput_cost_to_capacity


def _p95_s(report: PolicyReport, group: TenantGroup | None) -> float | None:
    """The mean of the group's tenants' p95, or the p95 of all."""
    if group is None:
        return report.latency_s.p95
    return mean_known(each.latency_s.p95 for each in members(report, group))


COMPARED: Mapping[
    str,
    tuple[Callable[[PolicyReport, TenantGroup | None], float | None], Callable[[float, float], float]],
] = {
    "goodput_less_one_router": (_goodput, lambda mine, its: mine - its),
    "p95_over_one_router": (_p95_s, lambda mine, its: mine / its),
}
"""Figures beside those of the policy ONE_ROUTER in the same comparison: what is read, and how both are compared."""
