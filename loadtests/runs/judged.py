"""A command that makes one run, judges it, and writes it down as a page: integrity and soak are of this kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from loadtests.cluster.processes import run
from loadtests.paths import ROOT
from loadtests.report import machine
from loadtests.report.console import say, why

RESULTS = ROOT / "docs" / "results"
NOT_HELD = 1
NOT_MADE = 2


class Result(Protocol):
    """What came of a run."""

    @property
    def held(self) -> bool:
        """Whether nothing happened that must never be."""


Some = TypeVar("Some", bound=Result)
Told = TypeVar("Told", bound=Result, contravariant=True)


class Report(Protocol[Told]):
    """A module that tells a result."""

    def lines(self, result: Told) -> Iterator[str]:
        """For the terminal."""

    def page(self, result: Told, *, command: str, machine: str) -> str:
        """In Markdown."""


def typed(verb: str, given: Mapping[str, object], usual: Mapping[str, object]) -> str:
    """What to type for the same run again. What is as usual need not be said."""
    options = " ".join(f"--{name} {value}" for name, value in given.items() if value != usual[name])
    return f'make {verb} ARGS="{options}"' if options else f"make {verb}"


def judged(
    playing: Coroutine[Any, Any, Some],
    report: Report[Some],
    *,
    name: str,
    command: str,
    out: Path | None,
    whole: bool,
    data: Callable[[Some], Mapping[str, Any]] | None = None,
) -> int:
    """The exit status. NAME.md goes into `out`, and among the results where none is named and the run was whole.

    NAME.json is written beside it if `data` says what it contains.
    """
    on = machine.describe()
    try:
        result = run(playing)
    except (OSError, RuntimeError, ExceptionGroup) as error:
        say(f"the run could not be made: {why(error)}")
        return NOT_MADE
    say("\n".join(report.lines(result)))
    folder = out or (RESULTS if whole else None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(report.page(result, command=command, machine=on), encoding="utf-8")
        if data is not None:
            told = json.dumps({"machine": on, **data(result)}, indent=1)
            (folder / f"{name}.json").write_text(told + "\n", encoding="utf-8")
        say(f"Written to {folder}/{name}.md.")
    return 0 if result.held else NOT_HELD
