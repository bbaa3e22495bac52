"""Each alert fires when it should, is silent when it should not, and says where to read on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.headings import anchors
from tests.grafana.queries import FROM_PROMETHEUS, JOBS, ROOT, RULES, alerts, exported_by, records, rules_in, selections

TESTS = sorted((RULES / "tests").glob("*.yml"))
RULE_NAMES = [
    rule.get("alert") or rule["record"] for file in ("recording.yml", "alerts.yml") for rule in rules_in(file)
]
BY_NAME = {rule["alert"]: rule for rule in alerts()}
every_alert = pytest.mark.parametrize("name", BY_NAME)


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
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text(encoding="utf-8")
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
