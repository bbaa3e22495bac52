"""Changes from the command line: to the right place, and a sentence where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.scenarios.changes import Changes, changed, missing_trace
from services.cli.errors import LabError


@pytest.fixture
def raw() -> dict[str, Any]:
    return {
        "seed": 7,
        "duration_s": 60,
        "weir": {"safety_margin": 0.9},
        "workers": [{"kind": "slots", "slots": 8}],
        "tenants": [
            {"name": "small", "arrivals": {"kind": "poisson", "load": 0.3}},
            {"name": "big", "arrivals": {"kind": "trace", "path": "there.csv"}},
        ],
        "policies": ["fifo", {"policy": "weir", "label": "weir_bare", "max_level": 0}],
    }


def test_a_key_is_set_by_its_path_and_the_value_is_yaml(raw: dict[str, Any]) -> None:
    sets = ("weir.safety_margin=0.8", "weir.new={a: [1, 2]}", "title=hello")
    made = changed(raw, Changes(sets=sets))
    assert made["weir"] == {"safety_margin": 0.8, "new": {"a": [1, 2]}}
    assert made["title"] == "hello"


def test_a_member_of_a_list_is_found_by_its_name_its_kind_or_its_number(raw: dict[str, Any]) -> None:
    sets = ("tenants.small.arrivals.load=3", "workers.slots.slots=4", "tenants.1.name=huge", "policies.fifo=vtc")
    made = changed(raw, Changes(sets=sets))
    assert made["tenants"][0]["arrivals"]["load"] == 3
    assert made["workers"][0]["slots"] == 4
    assert made["tenants"][1]["name"] == "huge"
    assert made["policies"][0] == "vtc"


def test_the_file_s_own_form_is_left_alone(raw: dict[str, Any]) -> None:
    changed(raw, Changes(sets=("weir.safety_margin=0.1",), policies=("vtc",), loads=(2.0,), seeds=3, duration_s=5.0))
    assert raw["weir"] == {"safety_margin": 0.9}
    assert raw["duration_s"] == 60
    assert raw["policies"][0] == "fifo"
    assert "sweep" not in raw


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("weir.margin", "write it as path.to.key=value"),
        ("tenants.giant.weight=2", "there is no giant; choose small or big"),
        ("duration_s.deep.deeper=1", "nothing can stand above deep"),
        ("duration_s.deep=1", "there is nothing below duration_s"),
        ("weir.margin=[1", "the value is not YAML"),
    ],
)
def test_a_change_without_a_place_is_refused_in_words(raw: dict[str, Any], assignment: str, told: str) -> None:
    with pytest.raises(LabError, match="--set") as caught:
        changed(raw, Changes(sets=(assignment,)))
    assert told in caught.value.message


def test_a_policy_is_chosen_with_the_settings_that_the_file_gives_it(raw: dict[str, Any]) -> None:
    made = changed(raw, Changes(policies=("weir_bare", "vtc")))
    assert made["policies"] == [{"policy": "weir", "label": "weir_bare", "max_level": 0}, "vtc"]


def test_loads_make_a_sweep_and_keep_whom_it_sweeps(raw: dict[str, Any]) -> None:
    raw["sweep"] = {"loads": [1], "tenants": ["small"]}
    assert changed(raw, Changes(loads=(10.0, 2.0, 10.0)))["sweep"] == {"loads": [2.0, 10.0], "tenants": ["small"]}


def test_seeds_count_up_from_the_file_s_own(raw: dict[str, Any]) -> None:
    assert changed(raw, Changes(seeds=3))["seeds"] == [7, 8, 9]


def test_a_shorter_run_still_has_a_window_that_counts(raw: dict[str, Any]) -> None:
    made = changed(raw, Changes(duration_s=3.0))
    assert (made["warm_up_s"], made["cool_down_s"]) == (0.5, 0.5)


def test_a_trace_goes_where_the_replay_is(raw: dict[str, Any], tmp_path: Path) -> None:
    assert missing_trace(raw, tmp_path) == "there.csv"
    made = changed(raw, Changes(trace=tmp_path / "mine.csv"))
    assert made["tenants"][1]["arrivals"]["path"] == str(tmp_path / "mine.csv")
    (tmp_path / "there.csv").touch()
    assert missing_trace(raw, tmp_path) is None


def test_what_is_no_mapping_is_left_for_the_reader_to_complain_about() -> None:
    assert changed(["no", "scenario"], Changes(loads=(1.0,))) == ["no", "scenario"]


def test_a_shorter_run_has_no_windows_that_end_after_it_and_no_targets_of_them() -> None:
    window = {"name": "late", "from_s": 20, "until_s": 40}
    raw = {
        "duration_s": 60,
        "windows": [{"name": "early", "from_s": 1, "until_s": 2}, window],
        "must": [{"figure": "goodput", "window": "late"}, {"figure": "goodput"}],
    }
    made = changed(raw, Changes(duration_s=30.0))
    assert [each["name"] for each in made["windows"]] == ["early"]
    assert made["must"] == [{"figure": "goodput"}]
    assert raw["windows"] == [{"name": "early", "from_s": 1, "until_s": 2}, window]
