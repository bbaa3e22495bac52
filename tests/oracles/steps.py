"""The bytecodes that an answer and a refusal take in the router: a ceiling that may only fall.

The check fails where a count is above the pinned one. What is pinned is written anew only where it is lower. To pin a
higher count takes a reason (`--raise`), which the file keeps beside the figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loadtests.bench.counted import steps_a_request
from tests.oracles.oracle import PINNED

FILE = PINNED / "steps" / "steps.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MOST_FILES = 12

Counts = Mapping[str, Mapping[str, float]]
"""Of each kind of request: steps a request, by file below services/."""


@cache
def counts() -> Counts:
    """Counted once in a process. Takes some seconds."""
    return steps_a_request()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What is pinned: the counts, of which Python, and every time that they were raised."""

    python: str
    counts: Counts
    raised: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, file: Path) -> Ceiling:
        """Raises FileNotFoundError."""
        told = json.loads(file.read_text(encoding="utf-8"))
        return cls(told["python"], told["steps_by_file"], tuple(told["raised"]))

    def write(self, file: Path) -> None:
        """As JSON, a line for each file, so that a change can be read."""
        told = {
            "python": self.python,
            "steps": {kind: total(by_file) for kind, by_file in self.counts.items()},
            "raised": self.raised,
            "steps_by_file": self.counts,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def total(by_file: Mapping[str, float]) -> float:
    """Steps a request, of all files."""
    return round(sum(by_file.values()), 3)


def above(pinned: Counts, now: Counts) -> list[str]:
    """The kinds of request that take more steps than is pinned, each with the files that took more."""
    return [_grown(kind, pinned[kind], now[kind]) for kind in pinned if total(now[kind]) > total(pinned[kind])]


def _grown(kind: str, before: Mapping[str, float], after: Mapping[str, float]) -> str:
    more = {file: after.get(file, 0.0) - before.get(file, 0.0) for file in {*before, *after}}
    files = [file for file in sorted(more, key=lambda file: (-more[file], file)) if more[file]][:MOST_FILES]
    lines = [f"{kind}: {total(before):,.1f} steps a request are pinned, and it takes {total(after):,.1f}"]
    return "\n".join([*lines, *(f"   {more[file]:+8.1f}  {file}" for file in files)])


@dataclass(frozen=True, slots=True)
class StepsOracle:
    """As an `Oracle`, but for what is a difference: only a higher count is one."""

    file: Path = FILE
    name: str = "steps"
    rewrite: str = "make oracles ARGS='--only steps --raise \"the reason\"'"

    def differences(self) -> list[str]:
        """The kinds that take more than is pinned. Empty under another Python, whose bytecodes are others."""
        pinned = Ceiling.read(self.file)
        return above(pinned.counts, counts()) if pinned.python == PYTHON else []

    def write(self) -> list[str]:
        """Pin lower counts. Raises ValueError where one is higher."""
        now = counts()
        if not self.file.exists():
            Ceiling(PYTHON, now, ()).write(self.file)
            return [self.file.name]
        pinned = Ceiling.read(self.file)
        if pinned.python != PYTHON:
            raise ValueError(f"the counts are of Python {pinned.python}, and this is {PYTHON}")
        if more := above(pinned.counts, now):
            raise ValueError("\n".join([*more, f"A higher count needs a reason: {self.rewrite}"]))
        if now == pinned.counts:
            return []
        Ceiling(PYTHON, now, pinned.raised).write(self.file)
        return [self.file.name]

    def raise_(self, reason: str) -> str:
        """Pin what it takes now, and why that is more. Returns what was done. Raises ValueError without a reason."""
        if not reason.strip():
            raise ValueError("a higher count needs a reason")
        pinned, now = Ceiling.read(self.file), counts()
        before = {**now, **pinned.counts}  # a new kind was not counted before
        changed = {kind: [total(before[kind]), total(now[kind])] for kind in now}
        Ceiling(PYTHON, now, (*pinned.raised, {"why": reason.strip(), "from_to": changed})).write(self.file)
        return ", ".join(f"{kind}: {before:,.1f} -> {after:,.1f}" for kind, (before, after) in changed.items())


ORACLE = StepsOracle()
