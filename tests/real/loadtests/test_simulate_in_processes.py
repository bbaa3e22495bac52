"""Simulations in several processes: the same figures, progress that only grows, and a run that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.simulator.runs import execute, plan
from services.cli.errors import LabError
from tests.loadtests.simulator.test_command import SMALL, weir, written
from tests.loadtests.simulator.test_runs import scenario


def test_figures_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    small = written(tmp_path / "small.yaml", SMALL | {"seed": 1})

    def figures(jobs: int) -> list[Any]:
        (comparison,) = json.loads(weir(small, "--json", jobs=jobs).stdout)
        return [{**run, "real_s": None} for run in comparison["runs"]]

    assert figures(1) == figures(2)


def test_progress_of_two_processes_only_grows_and_ends_at_the_whole() -> None:
    told: list[tuple[float, int]] = []
    made = plan(scenario(seeds=[1]))
    results = execute(made, 2, lambda size, done: told.append((size, done)))
    assert len(results) == len(made)
    assert told == sorted(told)
    assert told[-1] == (pytest.approx(sum(run.size for run in made)), len(made))


def test_a_run_that_fails_in_its_process_fails_them_all() -> None:
    broken = scenario(weir={"no_such_setting": 1}, policies=["weir", "fifo"])
    with pytest.raises(LabError, match="no_such_setting"):
        execute(plan(broken), 2)
