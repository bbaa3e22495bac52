"""Dashboards as code: `python -m grafana.build` writes dashboards/*.json; with `--check` it only compares.

The JSON is committed, because Grafana provisions files; a test keeps it in step with this package, and every query
in step with what the services export.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana.fairness import FAIRNESS
from grafana.governor import GOVERNOR
from grafana.model import model
from grafana.overview import OVERVIEW
from grafana.retrieval import RETRIEVAL
from grafana.workers import WORKERS

DASHBOARDS = Path(__file__).parent / "dashboards"
DRAWN = {
    "overview.json": OVERVIEW,
    "fairness.json": FAIRNESS,
    "workers.json": WORKERS,
    "retrieval.json": RETRIEVAL,
    "governor.json": GOVERNOR,
}


def built() -> dict[str, str]:
    """Every dashboard as it should stand in dashboards/, by file name."""
    return {
        name: json.dumps(model(dashboard), indent=2, ensure_ascii=False) + "\n" for name, dashboard in DRAWN.items()
    }


def stale() -> list[str]:
    """The files that differ from what would be written, and those that nothing writes."""
    wanted = built()
    found = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main(arguments: list[str]) -> int:
    """Write, or with `--check` compare."""
    if arguments == ["--check"]:
        differing = stale()
        if differing:
            sys.stderr.write(f"out of step: {', '.join(differing)}; run: python -m grafana.build\n")
        return 1 if differing else 0
    for name, text in built().items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
