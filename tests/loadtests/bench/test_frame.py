"""The frame that all benches have in common: which there are, their options, and what is typed for them."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest

from loadtests.bench import __main__ as command
from loadtests.bench import table
from loadtests.bench.table import BENCHES, PARTS, Bench, module, options, quick
from loadtests.report.figure import Figure
from loadtests.report.result import Result


class Options(msgspec.Struct, frozen=True):
    """Of the bench that is made up here."""

    rows: int = 100
    embed: bool = False
    only: tuple[str, ...] = ()


class MadeUp:
    """A bench that measures nothing, and keeps what it was asked."""

    QUICK = {"rows": 2}  # noqa: RUF012

    def __init__(self) -> None:
        self.asked: list[Options] = []

    def measure(self, options: Options, say: object) -> Result:
        self.asked.append(options)
        return Result("Made up", {"part": [Figure("rows", options.rows, "rows", 50)]}, ["A page."])


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUp:
    bench = MadeUp()
    monkeypatch.setitem(table.BENCHES, "made_up", Bench("made up", 1))  # type: ignore[arg-type]  # it is a dict
    monkeypatch.setattr(table, "module", lambda name: bench)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "PAUSE_S", 0)
    monkeypatch.setattr(command, "describe", lambda: "a machine")
    return bench


@pytest.mark.parametrize("name", [*BENCHES])
def test_every_bench_has_what_the_frame_asks_for(name: str) -> None:
    takes = set(inspect.signature(module(name).measure).parameters)
    assert takes <= {"seconds", "options", "say"}
    assert not {"seconds", "options"} <= takes, "its options have what it needs"
    chosen = [msgspec.convert(given, options(name), strict=False) for given in ({}, quick(name), BENCHES[name].brief)]
    assert all(isinstance(each, options(name)) for each in chosen)


def test_the_parts_of_the_common_page_are_benches() -> None:
    assert set(PARTS) <= set(BENCHES)


def test_options_of_a_bench_are_read_checked_and_told_in_the_command_of_its_page(
    made_up: MadeUp, tmp_path: Path
) -> None:
    words = ["made_up", "--rows", "7", "--only", "a", "--only", "b", "--embed", "--out", str(tmp_path)]
    assert command.main(words) == 0
    assert made_up.asked == [Options(7, True, ("a", "b"))]
    page = (tmp_path / "made_up.md").read_text()
    assert "`python -m loadtests.bench made_up --rows 7 --embed --only a --only b`" in page
    assert msgspec.json.decode((tmp_path / "made_up.json").read_bytes())["parts"]["part"][0]["held"] is False
    with pytest.raises(SystemExit):
        command.main(["made_up", "--rows", "many"])
    assert len(made_up.asked) == 1, "nothing is measured with an option that is none"


def test_a_short_run_and_a_part_are_not_published(made_up: MadeUp) -> None:
    for words in (["--quick"], ["--only", "a"]):
        with pytest.raises(SystemExit):
            command.main(["made_up", "--publish", *words])
    assert made_up.asked == []
    command.main(["made_up", "--quick"])
    assert made_up.asked == [Options(2)]


def test_the_whole_is_named_by_its_verb() -> None:
    assert command._command("bench", {}, False) == "make bench"
    assert command._command("bench", {"seconds": "1"}, False) == "make bench ARGS='--seconds 1'"


def test_a_part_of_the_common_page_is_measured_in_its_brief_form_whatever_else_is_said() -> None:
    given = {"seconds": "9", "rows": "7"}
    assert command._chosen("governor", given, False, part=False) == {"seconds": "9"}, "it has no rows"
    assert command._chosen("governor", given, False, part=True) == BENCHES["governor"].brief
    assert command._chosen("router", given, False, part=True) == {"seconds": "9"}
    assert command._chosen("router", given, True, part=True) == {"seconds": "9"}
    assert command._chosen("router", {}, True, part=True) == quick("router")
