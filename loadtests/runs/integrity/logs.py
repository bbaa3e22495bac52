"""What router and workers wrote down of each request, by its id, over all their lives."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.judging.rules import Logged

RAN = (200, 499)
"""What a worker says of a request that it took: all else it refused before its engine had it."""


@dataclass
class Book:
    """A router's log: its lines by id, errors of its own, and how often each outcome stands there in its last life."""

    lines: dict[str, list[Logged]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    last: Counter[str] = field(default_factory=Counter)


def book(log: Path, starts: Sequence[int] = ()) -> Book:
    """`starts`: how many bytes the log had at each start after the first. A line that a kill has cut short is left out.

    A second life begins on a line of its own only by chance, so half a line may take the first line of the next life
    with it; that one is never a request.
    """
    found = Book()
    for at, told in records(log):
        life = 1 + sum(start <= at for start in starts)
        if told.get("level") == "ERROR":
            found.errors.append(json.dumps(told))
        if told.get("event") == "request" and "outcome" in told:
            line = Logged(life, int(told["status"]), str(told["outcome"]), str(told.get("worker", "")))
            found.lines[str(told["id"])].append(line)
            found.last[line.outcome] += life == 1 + len(starts)
    found.last = +found.last
    return found


def received(worker: str, log: Path) -> Iterator[tuple[str, str]]:
    """The id of every request that a worker took, and the worker, as often as its log says."""
    for _, told in records(log):
        if told.get("path") == "/generate" and told.get("status") in RAN:
            yield str(told["id"]), worker


def records(log: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole line of a log and the byte at which it begins."""
    at = 0
    with log.open("rb") as lines:
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                told = None
            if isinstance(told, dict):
                yield at, told
            at += len(line)
