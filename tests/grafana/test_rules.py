"""Each alert fires when it should, is silent when it should not, and says where to read on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.headings import anchors
from tests.grafana.queries import FROM_PROMETHEUS, JOBS, ROOT, RULES, alerts, exported_by, records, rules_in, selections

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
TESTS = sorted((RULES / "tests").glob("*.yml"))
COMPARED = re.compile(r"(?<![=!<>~])(>=|<=|==|>|<)\s*(\([^()]*\)|[\d.]+)")
RULE_NAMES = [
    rule.get("alert") or rule["record"] for file in ("recording.yml", "alerts.yml") for rule in rules_in(file)
]
BY_NAME = {rule["alert"]: rule for rule in alerts()}
every_alert = pytest.mark.parametrize("name", BY_NAME)


def promtool(*words: str, folder: Path = RULES) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *words], cwd=folder, capture_output=True, text=True, check=False)


def asked_of(name: str, file: Path) -> list[dict[str, Any]]:
    return [
        case
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for case in group.get("alert_rule_test", [])
        if case["alertname"] == name
    ]


@every_alert
def test_an_alert_says_how_bad_it_is_what_it_saw_and_where_to_read_on(name):
    rule = BY_NAME[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "$value" in rule["annotations"]["summary"] or "$labels.mechanism" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor in anchors((ROOT / page).read_text(encoding="utf-8"))


def test_every_alert_is_named_by_its_runbook():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [name for name in BY_NAME if f"`{name}`" not in page] == []


@every_alert
def test_an_alert_is_tested_to_fire_and_to_be_silent(name):
    cases = [case for file in TESTS for case in asked_of(name, file)]
    assert any(case.get("exp_alerts") for case in cases)
    assert any(not case.get("exp_alerts") for case in cases)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_asks_for_what_a_job_exports(name):
    recorded = {rule["record"] for rule in records()}
    (rule,) = (rule for rule in [*records(), *alerts()] if name in (rule.get("alert"), rule.get("record")))
    asked = list(selections(rule["expr"]))
    assert asked
    for series, job in asked:
        if series not in recorded:
            assert job in JOBS, f"name the job that exports {series}: {rule['expr']}"
            assert series in exported_by(job) | FROM_PROMETHEUS


@pytest.mark.parametrize("record", [rule["record"] for rule in records()])
def test_what_is_recorded_is_used(record):
    boards = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "grafana" / "dashboards").glob("*.json"))
    used = boards + "".join(rule["expr"] for rule in [*records(), *alerts()])
    assert used.count(record) >= 1


@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_what_is_recorded_is_computed_before_what_compares_it(file):
    """promtool takes groups that it is given no order for in any; Prometheus runs all of them all the time."""
    order = yaml.safe_load(file.read_text(encoding="utf-8"))["group_eval_order"]
    files = (yaml.safe_load((RULES / name).read_text(encoding="utf-8")) for name in ("recording.yml", "alerts.yml"))
    assert order == [group["name"] for content in files for group in content["groups"]]


@needs_promtool
def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", "recording.yml", "alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_the_rules_do_what_their_tests_say(file):
    done = promtool("test", "rules", file.name, folder=file.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def changes(name: str) -> Iterator[dict[str, Any]]:
    """An alert with one thing about it changed: a bound, doubled or halved, or the time it takes."""
    rule = BY_NAME[name]
    expr, waits = rule["expr"], rule.get("for")
    for found in COMPARED.finditer(expr):
        for bound in (f"2 * {found[2]}", f"0.5 * {found[2]}") if found[2] != "0" else ("1",):
            yield {**rule, "expr": f"{expr[: found.start(2)]}{bound}{expr[found.end(2) :]}"}
    if waits:
        seconds = int(waits[:-1]) * {"s": 1, "m": 60}[waits[-1]]
        yield from ({**rule, "for": f"{changed}s"} for changed in (seconds * 2, seconds // 2))


@needs_promtool
@pytest.mark.parametrize("file", TESTS, ids=lambda path: path.stem)
def test_a_bound_that_is_changed_is_found_out(file, tmp_path):
    """Every change of every alert under a name of its own, and all of them put to the tests of the one they are of."""
    changed: dict[str, dict[str, Any]] = {}
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in alerts_in(file):
        changed |= {f"{name}Changed{i}": {**rule, "of": name} for i, rule in enumerate(changes(name))}
    for group in content["tests"]:
        group["alert_rule_test"] = [
            {**case, "alertname": changed_name}
            for case in group["alert_rule_test"]
            for changed_name, rule in changed.items()
            if rule["of"] == case["alertname"]
        ]
    rules = [{**rule, "alert": name} for name, rule in changed.items()]
    for rule in rules:
        del rule["of"]
    groups = {"groups": [{"name": "changed", "rules": rules}]}
    (tmp_path / "changed.yml").write_text(yaml.safe_dump(groups), encoding="utf-8")
    content["rule_files"] = [str(RULES / "recording.yml"), "changed.yml"]
    content["group_eval_order"].append("changed")
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    done = promtool("test", "rules", "tests.yml", folder=tmp_path)
    found_out = set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))
    assert changed
    assert {
        name: rule["expr"] + " for " + rule.get("for", "0s") for name, rule in changed.items() if name not in found_out
    } == {}


def alerts_in(file: Path) -> set[str]:
    """The alerts that a file tests."""
    return set(re.findall(r"alertname: (\w+)", file.read_text(encoding="utf-8")))
