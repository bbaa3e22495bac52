"""What the router wrote down: every request of all its lives, by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def outcomes(log: Path) -> dict[str, list[str]]:
    """Each request's outcomes, as often as it stands there. A line that a kill has cut short says nothing."""
    found: dict[str, list[str]] = {}
    for told in _records(log):
        if told.get("event") == "request":
            found.setdefault(str(told.get("id")), []).append(str(told.get("outcome")))
    return found


def faults(log: Path) -> list[str]:
    """Lines that should never be: errors of the program's own."""
    return [json.dumps(told) for told in _records(log) if told.get("level") == "ERROR"]


def _records(log: Path) -> Iterator[dict[str, object]]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                yield told
