"""A run that is judged: its page goes where it belongs, and its exit status says what came of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loadtests.report.figure import Figure, at_most
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs import judged as module
from loadtests.runs.judged import NOT_HELD, NOT_MADE, has_held, judged, lines, record_of, resumed, typed


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where whole runs are written to; and no signal of the tests' own process is touched."""
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "run", asyncio.run)
    monkeypatch.setattr(module.machine, "describe", lambda: "a machine; commit abc, 2026-11-23")
    return tmp_path / "results"


def found(lost: int = 0) -> Result:
    figures = [at_most("lost", lost, 0), Figure("sent", 7)]
    return Result("A trial", {"trial": figures}, [f"**{lost} lost.**", "About it."])


def status(lost: int = 0, out: Path | None = None, *, whole: bool = False, fails: Exception | None = None) -> int:
    async def play(say: Say) -> Result:
        if fails is not None:
            raise fails
        return found(lost)

    return judged(play, name="trial", command="make trial", takes_s=1, out=out, whole=whole)


@pytest.mark.parametrize(("lost", "expected"), [(0, 0), (1, NOT_HELD)])
def test_a_whole_run_is_written_among_the_results_whether_it_held_or_not(
    results: Path, lost: int, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(lost, whole=True) == expected
    assert (results / "trial.md").read_text(encoding="utf-8").startswith("# A trial\n\nWritten by `make trial`")
    told = json.loads((results / "trial.json").read_text(encoding="utf-8"))
    assert told["parts"]["trial"][0] | {"value": lost, "held": not lost} == told["parts"]["trial"][0]
    assert f"Written: {results}/trial.md" in capsys.readouterr().out


def test_a_shorter_run_is_only_told_and_a_folder_that_is_named_is_where_it_goes(results: Path, tmp_path: Path) -> None:
    assert status() == 0
    assert status(out=tmp_path / "a" / "b", whole=True) == 0
    assert (tmp_path / "a" / "b" / "trial.md").exists()
    assert not results.exists()


def test_the_terminal_has_every_figure_and_the_verdict_last() -> None:
    *figures, verdict = lines(found(2))
    assert [" ".join(line.split()) for line in figures] == ["trial", "MISSED lost 2 ≤ 0", "sent 7"]
    assert verdict == "\n2 lost."


def test_a_figure_without_a_target_misses_nothing() -> None:
    assert has_held(found())
    assert not has_held(found(1))


@pytest.mark.parametrize("error", [OSError("no port"), ExceptionGroup("", [OSError("no port")])])
def test_a_run_that_could_not_be_made_says_why_writes_nothing_and_keeps_its_finished_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    resumed(record_of("trial"), {}, print).add({"part": 1})
    assert status(out=tmp_path / "there", whole=True, fails=error) == NOT_MADE
    assert capsys.readouterr().out == "the run could not be made: OSError: no port\n"
    assert not (tmp_path / "there").exists()
    assert resumed(record_of("trial"), {}, print).rows == [{"part": 1}]
    assert status() == 0
    assert resumed(record_of("trial"), {}, print).rows == []


def test_a_run_goes_on_with_the_same_options_alone(tmp_path: Path) -> None:
    said: list[str] = []
    head = {"rows": ("a", "b")}
    resumed(tmp_path / "record.jsonl", head, said.append).add({"part": 1})
    assert resumed(tmp_path / "record.jsonl", head, said.append).rows == [{"part": 1}]
    assert said == []
    assert resumed(tmp_path / "record.jsonl", {"rows": ("a",)}, said.append).rows == []
    assert "belongs to the run" in said[0]


def test_what_is_typed_for_the_same_run_says_what_is_not_as_usual() -> None:
    usual = {"requests": 10, "only": ("a", "b")}
    assert typed("trial", usual, usual) == "make trial"
    assert typed("trial", {"requests": 20, "only": ("a",)}, usual) == 'make trial ARGS="--requests 20 --only a"'
