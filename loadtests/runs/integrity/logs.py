"""The log lines of router and workers about each request, by its id, over all their restarts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.judging.rules import Logged

RAN = (200, 499)
"""Statuses of requests that a worker took; it rejected all others before its engine had them."""


@dataclass
class RouterLog:
    """A router's log: lines by id, its own errors, and the count of each outcome since its last start."""

    lines: dict[str, list[Logged]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    last: Counter[str] = field(default_factory=Counter)


def read_router_log(log: Path, starts: Sequence[int] = ()) -> RouterLog:
    """Parses a router's log. `starts`: its size in bytes at each start after the first. Truncated lines are left out.

    After a kill the next start may continue a truncated line, so its first line may be lost too; that line is never
    about a request.
    """
    found = RouterLog()
    for at, record in records(log):
        run = 1 + sum(start <= at for start in starts)
        if record.get("level") == "ERROR":
            found.errors.append(json.dumps(record))
        if record.get("event") == "request" and "outcome" in record:
            worker, seconds = str(record.get("worker", "")), float(record.get("ms", 0)) / 1000
            line = Logged(run, int(record["status"]), str(record["outcome"]), worker, seconds)
            found.lines[str(record["id"])].append(line)
            found.last[line.outcome] += run == 1 + len(starts)
    found.last = +found.last
    return found


def received(worker: str, log: Path) -> Iterator[tuple[str, str]]:
    """(id, worker) for every request that a worker took, as often as its log has it."""
    for _, record in records(log):
        if record.get("path") == "/generate" and record.get("status") in RAN:
            yield str(record["id"]), worker


def records(log: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each complete line of a log, with the byte at which it begins."""
    at = 0
    with log.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield at, record
            at += len(line)
