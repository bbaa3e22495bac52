"""What may not change by accident is as it is pinned. `make oracles` shows the same differences, and accepts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.simulator.promises import CHOICES
from tests.oracles import decisions, metricnames, views
from tests.oracles.oracle import Oracle, difference, told
from tests.oracles.plays import CASES, SEEDS, plays
from tests.oracles.recording import MARK_EVERY
from tests.oracles.steps import FILE as STEPS_FILE
from tests.oracles.steps import ORACLE as STEPS
from tests.oracles.steps import PYTHON, Ceiling, StepsOracle, above, total
from tests.pythoncore import python_core


def check(oracle: Oracle | StepsOracle) -> None:
    """Fail with the difference, and with the command that accepts it."""
    if found := oracle.differences():
        pytest.fail("\n" + told(oracle.name, found, oracle.rewrite), pytrace=False)


def test_the_metrics_have_the_names_types_labels_and_buckets_that_are_pinned() -> None:
    check(metricnames.ORACLE)


def test_the_admin_state_the_console_frame_and_the_gauges_of_a_busy_router_are_as_they_are_pinned() -> None:
    check(views.ORACLE)


@pytest.mark.parametrize("name", CASES)
def test_the_policies_decide_in_the_cases_of_the_promises_as_they_are_pinned(name: str) -> None:
    file = decisions.file_of(name)
    before, after = decisions.ORACLE.pinned(file), decisions.text_of(name)
    if before != after:
        found = [difference(before, after, f"decisions/{file}"), decisions.departures(file, before, after)]
        pytest.fail("\n" + told("decisions", ["\n".join(found)], decisions.ORACLE.rewrite), pytrace=False)


def test_every_case_of_the_promises_is_pinned_with_every_policy_and_every_seed_of_weir() -> None:
    assert {path.name for path in decisions.ORACLE.folder.iterdir()} == {decisions.file_of(name) for name in CASES}
    for name, case in CASES.items():
        played = {(play.policy, play.seed) for play in plays(name)}
        assert {policy for policy, _ in played} == set(case.compared) <= set(CHOICES)
        assert {seed for policy, seed in played if policy == "weir"} == set(SEEDS)


def test_a_difference_says_after_which_decision_two_plays_part_and_what_is_decided_now() -> None:
    name = "one worker of two lost"
    after = decisions.text_of(name)
    marks = [line for line in after.splitlines() if line.startswith("   after ")]
    words = marks[0].split(": ")[1].split()
    other = marks[0].replace(" ".join(words), " ".join([*words[:5], *["0000"] * len(words[5:])]))
    said = decisions.departures(decisions.file_of(name), after.replace(marks[0], other, 1), after)
    first, *shown = said.splitlines()
    assert first == f"{name}, weir, seed 1: the decisions part after decision {5 * MARK_EVERY}. Now:"
    assert len(shown) == 2 * MARK_EVERY
    assert all("#" in line or "slots=" in line for line in shown)


@python_core
def test_an_answer_and_a_refusal_take_no_more_bytecodes_than_are_pinned() -> None:
    pinned = Ceiling.read(STEPS.file)
    if pinned.python != PYTHON:
        pytest.skip(f"the bytecodes are those of Python {pinned.python}")
    check(STEPS)


COUNTED = {"answers": {"core/scheduler.py": 100.0, "runtime/http.py": 50.0}, "refusals": {"core/scheduler.py": 70.0}}


def counting(monkeypatch: pytest.MonkeyPatch, more: float) -> None:
    now = {**COUNTED, "answers": {**COUNTED["answers"], "core/scheduler.py": 100.0 + more}}
    monkeypatch.setattr("tests.oracles.steps.counts", lambda: now)


def test_a_ceiling_falls_and_rises_only_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = StepsOracle(tmp_path / "steps.json")
    Ceiling(PYTHON, COUNTED, ()).write(oracle.file)
    counting(monkeypatch, -10.0)
    assert oracle.differences() == []
    assert oracle.write() == ["steps.json"]
    counting(monkeypatch, 0.0)
    assert "answers: 140.0 steps a request are pinned, and it takes 150.0" in oracle.differences()[0]
    with pytest.raises(ValueError, match="needs a reason"):
        oracle.write()
    with pytest.raises(ValueError, match="needs a reason"):
        oracle.raise_(" ")
    assert total(Ceiling.read(oracle.file).counts["answers"]) == 140.0
    assert oracle.raise_("each answer is signed") == "answers: 140.0 -> 150.0, refusals: 70.0 -> 70.0"
    assert oracle.differences() == []
    (raised,) = Ceiling.read(oracle.file).raised
    assert raised["why"] == "each answer is signed"


def test_a_higher_count_names_the_files_that_took_more() -> None:
    now = {
        "answers": {"core/scheduler.py": 100.0, "runtime/http.py": 45.0, "new.py": 9.0},
        "refusals": {"core/scheduler.py": 1.0},
    }
    (said,) = above(COUNTED, now)
    assert [line.split() for line in said.splitlines()[1:]] == [["+9.0", "new.py"], ["-5.0", "runtime/http.py"]]


def test_an_oracle_tells_what_differs_and_what_is_missing_and_writes_both(tmp_path: Path) -> None:
    made = {"same.txt": "1\n", "other.txt": "one\ntwo\n", "new.txt": "new\n"}
    oracle = Oracle("some", tmp_path, lambda: made)
    for name, text in {"same.txt": "1\n", "other.txt": "one\nthree\n", "old.txt": "old\n"}.items():
        (tmp_path / name).write_text(text)
    new, old, other = oracle.differences()
    assert new.endswith("+new")
    assert old.endswith("-old")
    assert other.splitlines()[-2:] == ["-three", "+two"]
    assert "make oracles WRITE=1 ARGS='--only some'" in told(oracle.name, [new, old, other], oracle.rewrite)
    assert oracle.write() == ["new.txt", "old.txt", "other.txt"]
    assert oracle.differences() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(made)


def test_a_refused_early_retry_costs_least_of_all_requests() -> None:
    pinned = json.loads(STEPS_FILE.read_text())["steps"]
    assert min(pinned, key=pinned.__getitem__) == "early retries"
    assert pinned["early retries"] < 0.6 * pinned["refusals"]
