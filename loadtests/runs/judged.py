"""Shared by the commands that make one run, judge it and write its page: integrity, rolling, siege and soak.

The first block of a result is the verdict in one line. A run has held if no figure missed its target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtests.cluster.processes import run
from loadtests.paths import RESULTS, ROOT
from loadtests.report import machine
from loadtests.report.console import say, why
from loadtests.report.progress import Say, progress
from loadtests.report.record import OtherRun, Record
from loadtests.report.result import Result, write

NOT_HELD = 1
NOT_MADE = 2


def judged(
    play: Callable[[Say], Coroutine[Any, Any, Result]],
    *,
    name: str,
    command: str,
    takes_s: float,
    out: Path | None,
    whole: bool,
) -> int:
    """Make the run, and return the exit status: 0, NOT_HELD or NOT_MADE. `takes_s`: its estimated seconds.

    NAME.md and NAME.json are written into `out`; without it, into docs/results if the run was `whole`. The record of
    finished parts is deleted after the run.
    """
    on = machine.describe()
    try:
        with progress(name, takes_s) as report:
            result = run(play(report))
    except (OSError, RuntimeError, ExceptionGroup) as error:
        say(f"the run could not be made: {why(error)}")
        return NOT_MADE
    publish(result, name, command=command, machine=on, folder=out or (RESULTS if whole else None))
    record_of(name).unlink(missing_ok=True)
    return 0 if has_held(result) else NOT_HELD


def has_held(result: Result) -> bool:
    return all(figure.held is not False for figure in result.figures)


def publish(result: Result, name: str, *, command: str, machine: str, folder: Path | None) -> None:
    say("\n".join(lines(result)))
    for path in write(result, folder / name, command=command, machine=machine) if folder is not None else ():
        say(f"Written: {path}")


def lines(result: Result) -> Iterator[str]:
    for part, figures in result.parts.items():
        yield f"\n{part}"
        for figure in figures:
            word = "MISSED" if figure.held is False else figure.verdict
            yield f"  {word:<8}{figure.name:<62}{figure.shown:>18}  {figure.wanted:<20} {figure.note}".rstrip()
    yield f"\n{str(result.blocks[0]).strip('*')}"


def record_of(name: str) -> Path:
    return ROOT / "out" / f"{name}.jsonl"


def here() -> dict[str, str]:
    """The machine and the commit. A run is resumed only on the same ones."""
    return {"machine": machine.describe().rpartition(",")[0]}  # without the day


def resumed(path: Path, head: Mapping[str, Any], say: Say) -> Record:
    """The record of the run that `head` describes. The file of another run is deleted, with a message."""
    whole = json.loads(json.dumps(head))  # compared with what is read from JSON
    try:
        return Record(path, whole)
    except OtherRun as error:
        say(f"not used: {error}")
        path.unlink()
        return Record(path, whole)


def typed(verb: str, given: Mapping[str, object], usual: Mapping[str, object]) -> str:
    """The command that repeats the run. Options with their default are left out."""
    options = [f"--{name} {each}" for name, value in given.items() if value != usual[name] for each in _each(value)]
    return f'make {verb} ARGS="{" ".join(options)}"' if options else f"make {verb}"


def _each(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
