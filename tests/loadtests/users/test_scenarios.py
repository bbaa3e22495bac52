"""Scenarios are bounded data; load goes nowhere but here; users come and go as the stages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.scenarios import people
from loadtests.scenarios.model import Retries
from loadtests.scenarios.people import MAX_SECONDS, MAX_USERS, SHORTEST_STAGE_S, Group, Scenario, Stage, load, names
from loadtests.target import BEYOND, is_beyond, refusal
from loadtests.users.placing import nearer

PEOPLE = Group("people", 1000, 8, (0, 1), {"ask": 2, "stream": 1})
BURST = (
    Stage("before", 20, {"people": 8}, 4),
    Stage("the burst", 20, {"people": 160}, 80),
    Stage("after", 20, {"people": 8}, 80),
)
EIGHT = [
    "baseline", "burst", "degradation", "mixed_deadlines", "noisy_neighbour", "recovery", "retry_storm", "slow_worker",
]  # fmt: skip


def scenario(**changes: object) -> Scenario:
    fields = {"name": "x", "asks": "?", "caption": "So.", "watch": ("That.",), "groups": (PEOPLE,), "stages": BURST}
    return Scenario(**{**fields, **changes})  # type: ignore[arg-type]


def group(**changes: object) -> Group:
    fields = {
        "name": "people", "deadline_ms": 1000, "max_tokens": 8, "think_s": (0, 1), "surfaces": {"chat": 1},
    }  # fmt: skip
    return Group(**{**fields, **changes})  # type: ignore[arg-type]


def test_there_are_the_eight_scenarios():
    assert names() == EIGHT


@pytest.mark.parametrize("name", EIGHT)
def test_every_scenario_asks_something_says_what_happens_and_what_to_look_at(name):
    loaded = load(name)
    assert loaded.asks.endswith("?")
    assert loaded.caption.endswith(".")
    assert all(what.endswith(".") for what in loaded.watch)
    assert loaded.seconds <= MAX_SECONDS


@pytest.mark.parametrize("name", EIGHT)
def test_every_group_of_a_scenario_is_there_at_some_time(name):
    loaded = load(name)
    assert {group for stage in loaded.stages for group, count in stage.users.items() if count} == {
        group.name for group in loaded.groups
    }


def test_baseline_and_burst_begin_and_end_alike():
    baseline, burst = load("baseline"), load("burst")
    assert baseline.stages[0].users == burst.stages[0].users == burst.stages[-1].users
    assert baseline.groups == burst.groups


def test_a_stage_grows_as_fast_as_its_tenants_do_together():
    assert [stage.spawn_per_s for stage in load("noisy_neighbour").stages] == [6, 46, 6]
    assert [stage.spawn_per_s for stage in load("mixed_deadlines").stages] == [30]


def test_the_quiet_stay_as_they_are_while_the_crowd_is_there():
    stages = load("noisy_neighbour").stages
    assert len({(stage.users["anna"], stage.users["ben"]) for stage in stages}) == 1
    assert [stage.users.get("crowd", 0) > 0 for stage in stages] == [False, True, False]


@pytest.mark.parametrize(("name", "slowed"), [("slow_worker", "one"), ("retry_storm", "all"), ("recovery", "all")])
def test_what_is_broken_is_broken_in_the_middle_and_mended_for_the_end(name, slowed):
    assert [stage.slow_workers for stage in load(name).stages] == ["none", slowed, "none"]


def test_an_unknown_scenario_is_refused_by_naming_the_known():
    with pytest.raises(ValueError, match="choose one of: baseline, burst"):
        load("../baseline")


WELL = """
title: T
question: "Is it well?"
about: So.
watch: [That.]
duration_s: 60
workers: [{kind: slots, slots: 4, prefill_tokens_per_s: 2500, s_per_token: 0.001}]
tenants: [{name: anna, arrivals: {kind: poisson, load: 1}}]
stages:
  locust:
    instead:
      tenants: [{name: demo, ask: 0.5, deadline_s: 2, arrivals: {kind: closed, clients: 8, think_s: 1}}]
"""
FAULTY = {
    "surprise: 1": "surprise",
    "watch: []": "need a question",
    "duration_s: 3600": "1800",
    "tenants: [{name: demo}]": "arrivals",
    "tenants: [{name: demo, arrivals: {kind: closed, clients: 2000}}]": "2000",
    "tenants: [{name: demo, count: 2, arrivals: {kind: closed, clients: 8}}]": "one tenant each",
    "tenants: [{name: demo, stream: 0.7, ask: 0.7, arrivals: {kind: closed, clients: 8}}]": "shares",
    "tenants: [{name: demo, arrivals: {kind: closed, clients: 0}}]": "a client at some time",
    "workers.0.failures: [{from_s: 1, until_s: 2}]": "are slow",
    "tenants: [{name: a, client_timeout_s: {kind: choice, values: [1]}, arrivals: {kind: closed, clients: 8}}]": (
        "number"
    ),
    "nowhere.at.0.all.x: 1": "",
}


def written(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "odd.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(people, "SCENARIOS", folder)


def test_a_file_plays_with_people_where_it_says_how_many(tmp_path, monkeypatch):
    written(WELL, tmp_path, monkeypatch)
    loaded = load("odd")
    assert names() == ["odd"]
    assert loaded.stages == (Stage("between", 60, {"demo": 8}, MAX_USERS),)
    assert loaded.groups == (Group("demo", 2000, 1024, (1, 1), {"ask": 0.5, "chat": 0.5}),)


def test_a_file_whose_tenants_ask_at_a_rate_is_not_for_people_and_says_so(tmp_path, monkeypatch):
    written(WELL.partition("stages:")[0], tmp_path, monkeypatch)
    assert names() == []
    with pytest.raises(ValueError, match=r"closed arrivals: see stages\.locust"):
        load("odd")


def test_a_file_that_is_not_for_people_gives_its_own_reason(tmp_path, monkeypatch):
    written(WELL.partition("stages:")[0] + "stages: {locust: {without: it takes a day.}}", tmp_path, monkeypatch)
    assert names() == []
    with pytest.raises(ValueError, match="not played by locust: it takes a day"):
        load("odd")


@pytest.mark.parametrize(("text", "what"), FAULTY.items())
def test_a_faulty_file_is_refused_by_name(text, what, tmp_path, monkeypatch):
    before = WELL.rpartition("      tenants")[0] if text.startswith("tenants") else WELL
    written(f"{before}      {text}\n", tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=f"(?s)odd.*{what}"):
        load("odd")


def test_what_only_other_stages_are_judged_by_does_not_disturb_people(tmp_path, monkeypatch):
    others = "alone: [anna]\nsweep: {loads: [1], tenants: [anna]}\nmust: [{figure: on_time, of: anna, at_least: 1}]"
    written(f"{others}\n{WELL}", tmp_path, monkeypatch)
    assert load("odd").groups[0].name == "demo"


@pytest.mark.parametrize(
    "changes",
    [
        {"stages": ()},
        {"groups": ()},
        {"groups": (PEOPLE, PEOPLE)},
        {"stages": (Stage("a", 1800, {"people": 1}, 1), Stage("b", 1, {"people": 1}, 1))},
        {"stages": (Stage("a", 1, {"others": 1}, 1),)},
        {"watch": ()},
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(changes):
    with pytest.raises(ValueError, match=r"expected|need|same name|no group"):
        scenario(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline_ms": 0},
        {"max_tokens": 10**6},
        {"think_s": (2, 1)},
        {"surfaces": {}},
        {"surfaces": {"mail": 1}},
        {"retries": Retries(attempts=99)},
        {"client_timeout_ms": -1},
        {"name": "a\r\nx-evil: 1"},
    ],
)
def test_a_group_out_of_bounds_is_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        group(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 0},
        {"seconds": float("nan")},
        {"users": {"people": MAX_USERS + 1}},
        {"users": {"people": 0}},
        {"users": {"people": 1.5}},
        {"users": {"people": 600, "others": 600}},
        {"spawn_per_s": 0},
        {"slow_workers": "two", "slow_factor": 8},
        {"slow_workers": "one"},
        {"slow_factor": 8},
        {"slow_workers": "all", "slow_factor": 1e9},
    ],
)
def test_a_stage_out_of_bounds_is_refused(changes):
    with pytest.raises(ValueError, match=r"expected|together"):
        Stage(**{"name": "a", "seconds": 1, "users": {"people": 1}, "spawn_per_s": 1, **changes})


def test_stages_follow_one_another_and_then_it_is_over():
    users = [stage and stage.all_users for stage in map(scenario().stage_at, (0, 19.9, 20, 39.9, 40, 59.9, 60))]
    assert users == [8, 8, 160, 160, 8, 8, None]


def test_a_shortened_scenario_has_the_same_stages_for_less_time():
    brief = scenario().shortened(0.1)
    assert [stage.seconds for stage in brief.stages] == [SHORTEST_STAGE_S] * 3
    assert [stage.users for stage in brief.stages] == [stage.users for stage in BURST]
    assert scenario().shortened(1) == scenario()
    with pytest.raises(ValueError, match="expected"):
        scenario().shortened(0)


def test_users_start_a_few_at_a_time_and_those_who_are_too_many_leave_at_once():
    counts, wanted = {"anna": 3, "crowd": 0, "late": 0, "gone": 2}, {"anna": 3, "crowd": 5, "late": 1, "gone": 0}
    seen = []
    while counts != wanted:
        counts = nearer(counts, wanted, 4)
        seen.append(list(counts.values()))
    assert seen == [[3, 4, 0, 0], [3, 5, 1, 0]]


@pytest.mark.parametrize(
    "host", ["http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost", "http://router:8000"]
)
def test_load_may_go_to_this_machine_and_the_compose_router(host):
    assert refusal(host) == ""


@pytest.mark.parametrize(
    "host",
    ["http://example.org", "http://10.0.0.1", "http://router.example.org", "http://0.0.0.0:8000", "router", "", None],
)
def test_load_goes_nowhere_else(host):
    assert refusal(host)


def test_another_machine_is_refused_by_naming_the_flag_and_loaded_with_it():
    assert refusal("http://example.org").endswith(f"without {BEYOND}")
    assert refusal("http://example.org", beyond=True) == ""
    assert refusal("example.org", beyond=True).endswith("is not an http:// address")
    assert is_beyond("http://example.org")
    assert not is_beyond("http://127.0.0.1:8000")
