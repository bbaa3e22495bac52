"""Dashboards as code: `python -m grafana.build` writes dashboards/*.json; with `--check` it only compares.

The JSON is committed, because Grafana provisions files; a test keeps it in step with this package, and every query
in step with what the services export.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana.overview import OVERVIEW
from grafana.panels import dashboard

DASHBOARDS = Path(__file__).parent / "dashboards"


def built() -> dict[str, str]:
    """Every dashboard as it should stand in dashboards/, by file name."""
    overview = dashboard(
        "weir-overview",
        "Weir: overview",
        "Are admitted requests on time? Who is refused, and why? Is work wasted? What is degraded?",
        OVERVIEW,
    )
    return {"overview.json": json.dumps(overview, indent=2, ensure_ascii=False) + "\n"}


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
