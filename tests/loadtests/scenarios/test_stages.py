"""Where stages differ, the file says so by itself."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.scenarios.model import parse
from loadtests.scenarios.stages import for_stage
from services.cli.errors import LabError

RAW: dict[str, Any] = {
    "title": "T",
    "duration_s": 120,
    "workers": [{"kind": "slots", "slots": 4, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}],
    "tenants": [{"name": "a", "arrivals": {"kind": "poisson", "load": 1}}],
}


def test_a_stage_without_a_word_plays_the_file_as_it_is() -> None:
    assert for_stage(RAW, "processes", "t") == RAW


def test_a_stage_has_its_own_changes_and_others_do_not() -> None:
    raw = RAW | {"stages": {"processes": {"instead": {"duration_s": 30, "tenants.a.deadline_s": 2}}}}
    made = for_stage(raw, "processes", "t")
    assert (made["duration_s"], made["tenants"][0]["deadline_s"]) == (30, 2)
    assert for_stage(raw, "simulator", "t")["duration_s"] == 120
    assert raw["duration_s"] == 120


def test_other_values_are_put_at_their_paths_in_their_order() -> None:
    instead = {"duration_s": 60, "workers.0.slots": 2, "tenants": [{"name": "b"}], "tenants.b.deadline_s": 2}
    raw = RAW | {"stages": {"locust": {"instead": instead}}}
    made = for_stage(raw, "locust", "t")
    assert (made["duration_s"], made["workers"][0]["slots"]) == (60, 2)
    assert made["tenants"] == [{"name": "b", "deadline_s": 2}]
    assert instead["tenants"] == [{"name": "b"}], "the file itself stays as it is"
    assert for_stage(raw, "simulator", "t")["workers"][0]["slots"] == 4


def test_another_value_that_has_no_place_is_told_with_its_path() -> None:
    raw = RAW | {"stages": {"locust": {"instead": {"workers.gpu.slots": 1}}}}
    with pytest.raises(LabError, match=r"^workers\.gpu\.slots of stages\.locust\.instead: there is no gpu"):
        for_stage(raw, "locust", "t")


def test_a_stage_that_cannot_play_it_says_why() -> None:
    raw = RAW | {"stages": {"locust": {"without": "people cannot ask ten thousand times a second."}}}
    with pytest.raises(LabError, match="t is not played by locust: people cannot ask"):
        for_stage(raw, "locust", "t")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stages": {"moon": {}}}, "stages.moon"),
        ({"stages": {"processes": {"instead": "x=1"}}}, "stages.processes.instead"),
        ({"stages": {"processes": {"instead": [1]}}}, "stages.processes.instead"),
        ({"must": [{"figure": "goodput"}]}, "needs either at_least or at_most"),
        ({"must": [{"figure": "goodput", "at_least": 1, "window": "w"}]}, "there is no window w"),
        ({"must": [{"figure": "on_time", "at_least": 1, "of": "b"}]}, "must: there is no tenant b"),
        ({"windows": [{"name": "w", "from_s": 3, "until_s": 200}]}, "w ends after the run, which has"),
        ({"alone": ["b"]}, "alone: there is no tenant b"),
    ],
)
def test_a_fault_of_the_file_is_told_with_its_place(more: dict[str, Any], told: str) -> None:
    with pytest.raises(LabError) as found:
        parse(for_stage(RAW | more, "processes", "t"))
    assert told in " ".join(found.value.notes)
