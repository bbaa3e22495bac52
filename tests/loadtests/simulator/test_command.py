"""`weir simulate` as a person meets it: names, files, options, faults and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from loadtests.scenarios.model import names
from loadtests.simulator import capacity, command
from loadtests.simulator.__main__ import app

SMALL: dict[str, Any] = {
    "title": "A small one",
    "seed": 4711,  # a measured capacity is remembered by its seed: no other test shall meet a rough one
    "duration_s": 6,
    "warm_up_s": 1,
    "cool_down_s": 1,
    "workers": [{"kind": "slots", "slots": 4, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}],
    "tenants": [
        {
            "name": name,
            "arrivals": {"kind": "poisson", "load": 1.5},
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "max_tokens": 50,
            "deadline_s": 1,
        }
        for name in ("a", "b")
    ],
    "policies": ["fifo_ttl", "round_robin_ttl_cancel"],
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(capacity, "ANSWERS", 2_000)  # a rough capacity will do
    return written(tmp_path / "small.yaml", SMALL)


def written(path: Path, raw: Any) -> Path:
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def weir(*arguments: str | Path, jobs: int = 1) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--jobs", str(jobs)])


def test_without_a_name_it_lists_what_ships() -> None:
    for result in (weir(), weir("--list")):
        assert result.exit_code == 0
        for name in names():
            assert name in result.stdout


def test_a_file_is_run_and_its_policies_stand_below_one_another(small: Path) -> None:
    result = weir(small)
    assert result.exit_code == 0, result.output
    assert "A small one" in result.stdout
    assert "\nfifo_ttl " in result.stdout
    assert "\nround_robin_ttl_cancel " in result.stdout


def test_two_files_of_one_name_are_two_scenarios(small: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other" / "small.yaml", SMALL)
    found = json.loads(weir(small, other, "--json", "--policy", "fifo").stdout)
    assert [comparison["name"] for comparison in found] == ["small", "small-2"]


def test_json_on_the_standard_output_is_json_and_nothing_else(small: Path) -> None:
    result = weir(small, "--json", "--policy", "fifo")
    (comparison,) = json.loads(result.stdout)
    (run,) = comparison["runs"]
    assert (comparison["name"], run["policy"], run["load"]) == ("small", "fifo", None)
    assert run["ledger"]["distinct"] > 100


def test_loads_policies_seeds_and_duration_are_taken_from_the_command_line(small: Path) -> None:
    more = ["--load", "2", "--load", "0.5", "--policy", "fifo", "--policy", "vtc", "--seeds", "2", "--duration", "3"]
    (comparison,) = json.loads(weir(small, "--json", *more).stdout)
    made = [(run["load"], run["policy"], run["seed"]) for run in comparison["runs"]]
    assert made == [(load, policy, seed) for load in (0.5, 2) for policy in ("fifo", "vtc") for seed in (4711, 4712)]
    assert {run["window_s"] for run in comparison["runs"]} == {2.0}


def test_a_value_is_set_anywhere_in_the_file(small: Path) -> None:
    changes = ["--set", "tenants.a.arrivals.load=0.1", "--set", "tenants.b.arrivals.load=0.2", "--policy", "fifo"]
    (comparison,) = json.loads(weir(small, "--json", *changes).stdout)
    assert [group["arrivals"]["load"] for group in comparison["scenario"]["tenants"]] == [0.1, 0.2]
    assert 0.1 < comparison["runs"][0]["offered_load"] < 0.6  # of 3 in the file


def test_everything_is_kept_where_it_was_asked_to_be(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = weir(small, "--out", tmp_path / "new" / "folder")
    assert result.exit_code == 0, result.output
    found = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert {"small.json", "small-waste.png", "small-waste.svg", "small-waste-dark.svg", "small-on-time.png"} <= found
    assert "small-waste.png" in result.stderr


def test_without_matplotlib_there_is_a_sentence_and_still_the_table_and_the_json(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    result = weir(small, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "\nfifo_ttl " in result.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.json"]
    assert "need matplotlib" in result.stderr


def test_an_unknown_scenario_names_those_that_exist() -> None:
    result = weir("bursts")
    assert result.exit_code == 2
    assert "bursts" in result.stderr
    assert "burst, " in result.stderr


def test_all_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    first = written(tmp_path / "first.yaml", SMALL | {"duration_s": -1, "colour": "blue"})
    second = written(tmp_path / "second.yaml", SMALL | {"policies": ["lifo"]})
    result = weir(first, second)
    assert result.exit_code == 2
    assert result.stdout == ""
    for words in ("first.yaml", "duration_s", "colour", "second.yaml", "policies[0]"):
        assert words in result.stderr, words


def test_a_change_that_has_no_place_is_a_fault_like_any_other(small: Path) -> None:
    result = weir(small, "--set", "tenants.c.weight=2")
    assert result.exit_code == 2
    assert "there is no c; choose a or b" in result.stderr


def test_a_setting_that_weir_does_not_have_is_told_before_anything_runs(small: Path) -> None:
    result = weir(small, "--policy", "weir", "--set", "weir.nonsense=1")
    assert result.exit_code == 2
    assert "nonsense" in result.stderr
    assert "safety_margin" in result.stderr


def test_a_policy_that_does_not_exist_is_a_fault(small: Path) -> None:
    result = weir(small, "--policy", "lifo")
    assert result.exit_code == 2
    assert "'round_robin_ttl'" in result.stderr


def test_a_replay_without_its_trace_is_skipped_in_words_and_is_no_fault() -> None:
    result = weir("azure_code")
    assert result.exit_code == 0
    assert "--trace PATH" in result.stderr


def test_a_replay_with_its_trace_is_run(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = "".join(f"2023-11-16 18:17:{second:02}.0,200,20\n" for second in range(60))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    result = weir("azure_code", "--trace", trace, "--duration", "30", "--policy", "fifo")
    assert result.exit_code == 0, result.output
    assert "\nfifo " in result.stdout


def test_a_folder_that_cannot_be_written_to_is_told_in_a_sentence(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = weir(small, "--policy", "fifo", "--out", tmp_path / "file" / "below")
    assert result.exit_code == 1
    assert "cannot be written to" in str(result.exception)
