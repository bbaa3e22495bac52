"""The scenarios of the matrix in the simulator: rows for the page, and what Weir had to hold."""

from __future__ import annotations

import pytest

from loadtests.runs.matrix import simulated
from loadtests.runs.matrix.cases import SERIES
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.model import Scenario
from loadtests.scenarios.stages import on_stage


def test_each_policy_has_a_row_and_groups_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(name: str, stage: str) -> Scenario:
        return on_stage(name, "simulator", Changes(policies=("weir", "fifo"), duration_s=3.0))

    monkeypatch.setattr(simulated, "on_stage", short)
    found = simulated.simulate("narrow_neighbour", 1)
    assert [row.policy for row in found.rows] == ["weir", "fifo"]
    weir, fifo = found.rows
    assert weir.groups.keys() == {"light", "heavy"}
    assert weir.groups["light"] > fifo.groups["light"]
    assert [(figure.name, figure.target) for figure in found.figures] == [("light: answered on time", 0.99)]


def test_all_but_those_whose_workers_stand_still_are_played() -> None:
    assert [name for name in SERIES if not simulated.can(name)] == ["outage_frozen"]
