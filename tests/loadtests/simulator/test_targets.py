"""What a file wants to hold is read off the simulation of Weir, and told beside it."""

from __future__ import annotations

import io

from rich.console import Console

from loadtests.scenarios.changes import Changes
from loadtests.scenarios.stages import on_stage
from loadtests.simulator.results import Comparison, compare
from loadtests.simulator.runs import execute, plan
from loadtests.simulator.table import page
from loadtests.simulator.targets import targets


def played(name: str, *sets: str, seconds: float | None = None) -> Comparison:
    scenario = on_stage(name, "simulator", Changes(policies=("weir", "fifo"), duration_s=seconds, sets=sets))
    return compare(name, scenario, execute(plan(scenario), 1))


def test_overload_is_held_to_its_bounds_by_weir_alone() -> None:
    found = {figure.name: figure for figure in targets(played("overload_2x"))}
    assert {name: figure.held for name, figure in found.items()} == {
        "goodput / capacity": True,
        "wait of the admitted, p50": True,
        "wait of the admitted, p95": True,
        "tokens written that were in no answer on time": True,
    }
    assert found["goodput / capacity"].target == 0.97


def test_a_bound_of_one_tenant_is_that_of_the_worst_of_its_group_at_the_greatest_load() -> None:
    (figure,) = targets(played("noisy_neighbour", "sweep.loads=[1, 50]", seconds=3.0))
    assert (figure.name, figure.held) == ("small: answered on time", True)


def test_a_missed_bound_is_told_to_be_missed() -> None:
    comparison = played("half", "must=[{figure: on_time, at_least: 0.9}, {figure: dispatches, at_most: 0.5}]")
    assert [figure.held for figure in targets(comparison)] == [True, False]
    told = io.StringIO()
    Console(file=told, width=120).print(page(comparison))
    assert "held   answered on time: 100.00 %, ≥ 90.00 %" in told.getvalue()
    assert "missed requests to workers, for each of a client's: 1, ≤ 0.50" in told.getvalue()
    assert "Is everything answered on time while there is plenty of spare capacity?" in told.getvalue()
