"""What the committed dashboards and rules ask for, taken apart: panels, expressions, series."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from grafana.build import DASHBOARDS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "rules"
OF_OURS = {name: ROOT / "services" / name for name in ("router", "retrieval", "worker", "governor")}
OF_OURS["storm"] = ROOT / "loadtests" / "storm"
OF_EXPORTERS = {
    "postgres": {
        "pg_up",
        "pg_database_size_bytes",
        "pg_stat_database_blks_hit",
        "pg_stat_database_blks_read",
        "pg_stat_database_xact_commit",
        "pg_stat_database_xact_rollback",
    },
    "valkey": {
        "redis_up",
        "redis_evicted_keys_total",
        "redis_keyspace_hits_total",
        "redis_keyspace_misses_total",
        "redis_memory_max_bytes",
        "redis_memory_used_bytes",
    },
}
"""Job -> what is asked of the exporters that compose starts, as they call it."""
JOBS = (*OF_OURS, *OF_EXPORTERS)
FROM_THE_CLIENT_LIBRARY = {
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
}
FROM_PROMETHEUS = {"up", "ALERTS"}
SERIES_ENDINGS = ("", "_total", "_bucket", "_sum", "_count")
OWN = r"(?:weir|gen_ai|vllm|process|heptamini|pg|redis)[_:][a-z0-9_]+"
METRIC_NAME = re.compile(OWN)
SELECTOR = re.compile(rf'(?<![\w:"])((?:[a-z]+:{OWN}:[a-z0-9_]+)|{OWN}|(?:up|ALERTS)(?=\b[^(]))(?:\{{([^{{}}]*)\}})?')
JOB = re.compile(r'job=~?"([^"]+)"')


@functools.cache
@functools.cache
def dashboards() -> dict[str, dict[str, Any]]:
    """The committed files, by name."""
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels() -> list[tuple[str, dict[str, Any]]]:
    """(file, panel) for each that is no row."""
    return [
        (name, panel) for name, board in dashboards().items() for panel in board["panels"] if panel["type"] != "row"
    ]


def panel_queries() -> Iterator[tuple[str, str, str]]:
    """(file, title of the panel, expression)."""
    for name, panel in panels():
        for target in panel["targets"]:
            yield name, panel["title"], target["expr"]


@functools.cache
def rules_in(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / file).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return rules_in("alerts.yml")


def records() -> list[dict[str, Any]]:
    return rules_in("recording.yml")


@functools.cache
def exported_by(service: str) -> set[str]:
    """Every series name a service can have, from the names written in its modules; or an exporter's."""
    if service in OF_EXPORTERS:
        return OF_EXPORTERS[service]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in OF_OURS[service].rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = {text for text in texts if METRIC_NAME.fullmatch(text)}
    return {name + ending for name in names for ending in SERIES_ENDINGS} | FROM_THE_CLIENT_LIBRARY


def selections(expression: str) -> Iterator[tuple[str, str]]:
    """(series name, job) for every series that an expression asks for; the job is "" where none is named."""
    for name, labels in SELECTOR.findall(expression):
        job = JOB.search(labels)
        for one in job[1].split("|") if job else [""]:
            yield name, one
