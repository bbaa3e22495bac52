"""Scenarios are bounded data; load goes nowhere but here; the ledger forgets no outcome."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from loadtests import scenario as scenarios
from loadtests.ledger import Ledger, percentile
from loadtests.scenario import MAX_SECONDS, MAX_USERS, Scenario, Stage, load
from loadtests.target import refusal

LOADTESTS = Path(__file__).parents[2] / "loadtests"
BURST = (Stage(20, 8, 4), Stage(20, 160, 160), Stage(20, 8, 160))


def scenario(**changes: object) -> Scenario:
    fields = {"name": "x", "asks": "?", "deadline_ms": 1000, "max_tokens": 8, "think_s": (0, 1), "stages": BURST}
    return Scenario(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(LOADTESTS.glob("scenarios/*.toml")), ids=lambda path: path.stem)
def test_every_scenario_loads_and_asks_something(path):
    loaded = load(path.stem)
    assert loaded.asks.endswith("?")
    assert loaded.seconds <= MAX_SECONDS


def test_baseline_and_burst_begin_and_end_alike():
    baseline, burst = load("baseline"), load("burst")
    assert baseline.stages[0].users == burst.stages[0].users == burst.stages[-1].users
    assert (baseline.deadline_ms, baseline.max_tokens) == (burst.deadline_ms, burst.max_tokens)


def test_an_unknown_scenario_is_refused_by_naming_the_known():
    with pytest.raises(ValueError, match="choose one of: baseline, burst"):
        load("../baseline")


@pytest.mark.parametrize(
    "text",
    ["deadline_ms = 'soon'", "[[stages]]\nusers = 1", "surprise = 1", "think_s = [1, 2, 3]", "= nonsense"],
)
def test_a_faulty_file_is_refused_by_name(text, tmp_path, monkeypatch):
    (tmp_path / "odd.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(scenarios, "SCENARIOS", tmp_path)
    with pytest.raises(ValueError, match=r"^odd\.toml: "):
        load("odd")


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline_ms": 0},
        {"max_tokens": 10**6},
        {"think_s": (2, 1)},
        {"stages": ()},
        {"stages": (Stage(1800, 1, 1),) * 2},
    ],
)
def test_a_scenario_out_of_bounds_is_refused(changes):
    with pytest.raises(ValueError, match=r"expected|needs"):
        scenario(**changes)


@pytest.mark.parametrize("stage", [(0, 1, 1), (1, MAX_USERS + 1, 1), (1, 0, 1), (1, 1, 0), (float("nan"), 1, 1)])
def test_a_stage_out_of_bounds_is_refused(stage):
    with pytest.raises(ValueError, match="was expected"):
        Stage(*stage)


def test_stages_follow_one_another_and_then_it_is_over():
    users = [stage and stage.users for stage in map(scenario().stage_at, (0, 19.9, 20, 39.9, 40, 59.9, 60))]
    assert users == [8, 8, 160, 160, 8, 8, None]


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


def test_the_ledger_counts_every_outcome_in_bounded_memory():
    ledger = Ledger()
    for took_ms in range(20_000):
        ledger.record("/ask", "served", took_ms)
    ledger.record("/ask", "refused: yield", 3)
    assert ledger.total == 20_001
    assert sum(len(times) for times in ledger._times_ms.values()) < 400
    assert "refused: yield" in ledger.table()


def test_a_percentile_is_the_least_time_that_covers_the_share():
    times = Counter({10: 50, 20: 45, 300: 5})
    assert [percentile(times, q) for q in (0.5, 0.51, 0.95, 0.96, 1.0)] == [10, 20, 20, 300, 300]


def test_the_load_tests_know_nothing_of_the_services():
    for path in LOADTESTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "services" for name in names), path.name
