"""The committed dashboards are those that the code draws, and ask only for what the services export."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grafana.build import DASHBOARDS, stale
from grafana.panels import COLUMNS

ROOT = Path(__file__).parents[2]
JOBS = ("router", "retrieval", "worker")
FROM_THE_CLIENT_LIBRARY = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
FROM_PROMETHEUS = {"up"}
SERIES_ENDINGS = ("", "_total", "_bucket", "_sum", "_count")
METRIC_NAME = re.compile(r"(?:weir|gen_ai|vllm|process)[_:][a-z0-9_]+")
SELECTOR = re.compile(r"\b((?:weir|gen_ai|vllm|process)[_:][a-z0-9_]+|up)\b(?:\{([^{}]*)\})?")
JOB = re.compile(r'job=~?"([^"]+)"')


def panels() -> list[dict[str, Any]]:
    found = [panel for path in DASHBOARDS.glob("*.json") for panel in json.loads(path.read_text("utf-8"))["panels"]]
    return [panel for panel in found if panel["type"] != "row"]


def exported_by(service: str) -> set[str]:
    """Every series name a service can have, from the names written in its modules."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "services" / service).glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = {text for text in texts if METRIC_NAME.fullmatch(text)}
    return {name + ending for name in names for ending in SERIES_ENDINGS} | FROM_THE_CLIENT_LIBRARY


def selections() -> Iterator[tuple[str, str, str]]:
    """(query, series name, job) for every series that a panel asks for."""
    for panel in panels():
        for target in panel["targets"]:
            for name, labels in SELECTOR.findall(target["expr"]):
                job = JOB.search(labels)
                for service in job[1].split("|") if job else [""]:
                    yield target["expr"], name, service


def test_the_committed_files_are_what_the_code_draws():
    assert stale() == [], "run: python -m grafana.build"


@pytest.mark.parametrize(("query", "name", "job"), sorted(set(selections())))
def test_a_query_asks_for_what_that_job_exports(query, name, job):
    if job:
        assert job in JOBS, query
        assert name in exported_by(job), query
    else:
        assert name in FROM_PROMETHEUS, f"name the job that exports {name}: {query}"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_asks_a_question_and_explains_itself(panel):
    assert panel["title"].endswith("?")
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


def test_panels_do_not_overlap_and_fit_the_page():
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < COLUMNS
