"""promtool: the rules are rules, do what their tests say, and no bound of an alert can be changed unseen."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.grafana.queries import ROOT, RULES, alerts

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)")
TESTS = sorted((RULES / "tests").glob("*.yml"))
COMPARED = re.compile(r"(?<![=!<>~])(>=|<=|==|>|<)\s*(\([^()]*\)|[\d.]+)")
BY_NAME = {rule["alert"]: rule for rule in alerts()}


def promtool(*words: str, folder: Path = RULES) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *words], cwd=folder, capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules():
    done = promtool("check", "rules", "recording.yml", "alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("config", ["prometheus.yml", "prometheus.embedded.yml"])
def test_promtool_accepts_the_configuration(config, tmp_path):
    """In a copy beside which the token stands, since promtool looks for that, too."""
    folder, token = tmp_path / "grafana", tmp_path / ".weir" / "internal-token"
    shutil.copytree(ROOT / "grafana", folder)
    token.parent.mkdir()
    token.write_text("a token of sixteen characters or more", encoding="ascii")
    text = (folder / config).read_text(encoding="utf-8").replace("/run/weir/internal/token", str(token))
    (folder / config).write_text(text, encoding="utf-8")
    done = promtool("check", "config", config, folder=folder)
    assert done.returncode == 0, done.stderr


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
