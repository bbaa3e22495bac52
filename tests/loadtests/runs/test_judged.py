"""A run that is judged: its page goes where it belongs, and its exit status says what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtests.runs import judged as module
from loadtests.runs.judged import NOT_HELD, NOT_MADE, judged, typed


@dataclass
class Result:
    held: bool


class Report:
    def lines(self, result: Result) -> Iterator[str]:
        yield f"held: {result.held}"

    def page(self, result: Result, *, command: str, machine: str) -> str:
        return f"{command} on {machine}: {result.held}"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where whole runs are written to; and no signal of the tests' own process is touched."""
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "run", asyncio.run)
    monkeypatch.setattr(module.machine, "describe", lambda: "a machine")
    return tmp_path / "results"


async def made(held: bool) -> Result:
    return Result(held)


async def failing(error: Exception) -> Result:
    raise error


def status(playing: Any, out: Path | None = None, *, whole: bool = False) -> int:
    return judged(playing, Report(), name="trial", command="make trial", out=out, whole=whole)


@pytest.mark.parametrize(("held", "expected"), [(True, 0), (False, NOT_HELD)])
def test_a_whole_run_is_written_among_the_results_whether_it_held_or_not(
    results: Path, held: bool, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(made(held), whole=True) == expected
    assert (results / "trial.md").read_text(encoding="utf-8") == f"make trial on a machine: {held}"
    assert capsys.readouterr().out == f"held: {held}\nWritten to {results}/trial.md.\n"


def test_a_shorter_run_is_only_told(results: Path) -> None:
    assert status(made(True)) == 0
    assert not results.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_folder_that_is_named_is_where_it_goes(results: Path, tmp_path: Path, whole: bool) -> None:
    assert status(made(True), tmp_path / "a" / "b", whole=whole) == 0
    assert (tmp_path / "a" / "b" / "trial.md").exists()
    assert not results.exists()


def test_data_goes_beside_the_page_with_the_machine_it_was_measured_on(results: Path, tmp_path: Path) -> None:
    judged(
        made(True), Report(), name="trial", command="make trial", out=tmp_path, whole=False,
        data=lambda result: {"held": result.held},
    )  # fmt: skip
    assert json.loads((tmp_path / "trial.json").read_text(encoding="utf-8")) == {"machine": "a machine", "held": True}


@pytest.mark.parametrize("error", [OSError("no port"), ExceptionGroup("", [OSError("no port")])])
def test_a_run_that_could_not_be_made_says_why_and_writes_nothing(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert status(failing(error), tmp_path / "out", whole=True) == NOT_MADE
    assert capsys.readouterr().out == "the run could not be made: OSError: no port\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_typed_for_the_same_run_says_what_is_not_as_usual() -> None:
    usual = {"requests": 10, "seed": 1}
    assert typed("trial", usual, usual) == "make trial"
    assert typed("trial", {"requests": 20, "seed": 2}, usual) == 'make trial ARGS="--requests 20 --seed 2"'
