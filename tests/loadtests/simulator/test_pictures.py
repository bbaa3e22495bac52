"""The pictures of the documents: their commands and their figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from loadtests.scenarios.model import Failure
from loadtests.simulator.pictures import __main__ as pictures
from loadtests.simulator.pictures.closeups import LEARNED, MIXES, WAYS, Start, _lost
from loadtests.simulator.pictures.recipes import RECIPES, Recipe, Runs
from loadtests.simulator.plots import Chart

ROOT = Path(__file__).parents[3]
SHORT = Runs("sweep", ("weir", "{policy: weir, label: weir_without, settings: {calibrate: false}}"), (1, 2, 3), 3)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_scenario_that_can_be_read_and_policies_that_it_draws(name: str):
    recipe = RECIPES[name]
    scenario = recipe.runs.read()
    assert len(scenario.policies) == len(recipe.runs.policies)
    assert set(recipe.only) <= {choice.name for choice in scenario.policies}
    assert f"weir simulate {recipe.runs.scenario}" in recipe.runs.command


def test_every_scenario_of_a_closeup_can_be_read():
    for runs in (*MIXES.values(), *(runs for runs, _ in LEARNED.values())):
        assert runs.read().policies[0].name == "weir"


def test_one_picture_writes_its_own_files_and_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(RECIPES, "measured-rounds", Recipe(SHORT, "dropped"))
    pictures.write(tmp_path / "hints.csv", [("kept",)])
    pictures.make(["measured-rounds"], tmp_path, tmp_path, jobs=1)
    assert (tmp_path / "hints.csv").read_text() == "kept\n"
    rows = read(tmp_path / "measured-rounds.csv")
    assert [(row["load"], row["policy"]) for row in rows] == [
        (load, policy) for load in ("1x", "2x", "3x") for policy in ("weir", "weir_without")
    ]
    assert all(row["dropped"].endswith("%") for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "commands.csv", "hints.csv", "measured-rounds-dark.svg", "measured-rounds.csv", "measured-rounds.png",
        "measured-rounds.svg",
    ]  # fmt: skip


def test_commands_name_a_file_and_a_command_for_each_picture_and_are_up_to_date(tmp_path: Path):
    pictures.make([], tmp_path, None, jobs=1)
    assert (tmp_path / "commands.csv").read_bytes() == (ROOT / pictures.FOLDER / "commands.csv").read_bytes()
    named = {row["name"]: row for row in read(tmp_path / "commands.csv")}
    assert list(named) == list(pictures.ALL)
    assert named["standing-queue"]["figures"] == named["goodput"]["figures"] == "goodput.csv"
    assert named["a-quiet-day"]["command"] == RECIPES["a-quiet-day"].runs.command
    files = {row["figures"] for row in named.values()} | {"commands.csv"}
    assert {path.name for path in (ROOT / pictures.FOLDER).glob("*.csv")} == files


def test_the_shortest_picture_gives_the_committed_figures_again(tmp_path: Path):
    pictures.make(["steps"], tmp_path, None, jobs=1)
    assert (tmp_path / "steps.csv").read_bytes() == (ROOT / pictures.FOLDER / "steps.csv").read_bytes()


def test_drops_are_drawn_in_percent():
    chart = Recipe(SHORT, "dropped").chart(SHORT.make(jobs=1))
    assert isinstance(chart, Chart)
    assert all(0 <= y <= 100 for curve in chart.curves for y in curve.ys if y is not None)


def test_each_way_to_a_q95_learns_from_the_past_only():
    starts = [Start(float(i), "a", 1.0, 1.0, 1.0 + (i % 10) / 10) for i in range(100)]
    for way in WAYS.values():
        told = way.run(starts, "a")
        assert len(told.predicted_s) == 80
        assert told.within == 80
        assert max(told.predicted_s) == pytest.approx(1.9)
    assert not WAYS["plus an error, of the tenant"].run(starts, "b").predicted_s


def test_a_ratio_is_not_learned_from_what_was_hardly_a_wait_at_all():
    starts = [Start(float(i), "a", 0.001, 0.0, 0.05) for i in range(100)]
    assert not WAYS["times a ratio between 1 and 3, of the class"].run(starts, "a").predicted_s
    assert WAYS["plus an error, of the tenant"].run(starts, "a").within == 80


def test_a_failure_takes_its_part_of_capacity_while_it_lasts():
    down = Failure(from_s=20, until_s=40, workers=1)
    slow = Failure(from_s=20, until_s=40, workers=1, kind="slow", factor=4)
    assert [_lost(down, 2, now) for now in (19.9, 20, 39.9, 40)] == [0, 0.5, 0.5, 0]
    assert _lost(slow, 2, 30) == 0.375


def test_names_of_pictures_are_names_of_files():
    assert all(name.replace("-", "").isalpha() for name in pictures.ALL)
    assert len(pictures.ALL) == len(set(pictures.ALL))
