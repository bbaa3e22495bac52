"""A result becomes a page, its figures as JSON, and its pictures; and a long measurement says how far it is."""

from __future__ import annotations

import io
import math
import re
import sys
import time
from pathlib import Path

import msgspec
import pytest

from loadtests.report.figure import Figure, held, summary
from loadtests.report.progress import by_share, progress
from loadtests.report.result import Plot, Result, write

FIGURES = [Figure("a", 2.0, "s", 1.0), Figure("b", math.inf, "s", 1.0, at_least=False), Figure("c", 3.0)]


def drawn(theme):
    from loadtests.report.style import headline, sheet

    figure, _ = sheet()
    headline(figure, theme, "Is it drawn?", "A note.")
    return figure


def result() -> Result:
    blocks = ["Prose.\n", ["| a |", "|---|"], "", Plot("what it shows", drawn, "-more")]
    return Result("Things", {"one": FIGURES[:2], "two": FIGURES[2:]}, blocks, on="a model")


def test_how_many_targets_held_is_told_once_for_all() -> None:
    assert held(FIGURES) == "1 of 2 targets held."
    assert summary(FIGURES).startswith("1 of 2 targets held. ")


def test_a_result_is_a_page_its_figures_and_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `simulate`")
    paths = write(result(), tmp_path / "deep" / "things", command="make things", machine="a machine")
    assert [path.name for path in paths] == ["things.md", "things.json", "things-more.svg", "things-more-dark.svg"]
    page, told = paths[0].read_text(), msgspec.json.decode(paths[1].read_bytes())
    assert page.startswith(
        "# Things\n\nWritten by `make things`, on a machine; a model.\n\nProse.\n\n| a |\n|---|\n\n<pic"
    )
    assert 'srcset="things-more-dark.svg"' in page
    assert 'alt="what it shows"' in page
    assert [figure["held"] for part in told["parts"].values() for figure in part] == [True, False, None]
    assert told["parts"]["one"][1]["value"] is None, "JSON has no infinity"
    assert "Is it drawn?" in paths[2].read_text()


def test_without_what_draws_there_is_a_page_and_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    paths = write(result(), tmp_path / "things", command="c", machine="m")
    assert [path.name for path in paths] == ["things.md", "things.json"]
    assert "<picture>" not in paths[0].read_text()


def test_a_measurement_that_says_nothing_is_told_of_and_one_that_speaks_is_left_alone() -> None:
    said = io.StringIO()
    with progress("core", 60.0, every_s=0.01, out=said) as say:
        say("half of it")
        while "left" not in said.getvalue():
            time.sleep(0.001)
    assert "core: half of it" in said.getvalue()
    assert "s of 60 s left" in said.getvalue()
    quiet = io.StringIO()
    with progress("core", 60.0, out=quiet):
        pass
    assert quiet.getvalue() == ""


def test_a_run_of_unknown_length_tells_what_is_done_of_it_and_how_long_that_share_lets_it_take() -> None:
    said, done = io.StringIO(), [0.0]
    with progress("runs", by_share(lambda: done[0]), far=lambda: f"{done[0]:.0%} of them", every_s=0.01, out=said):
        while "runs: 0% of them, remaining time not known" not in said.getvalue():
            time.sleep(0.001)
        done[0] = 1e-6
        while not re.search(r"runs: 0% of them, about \d+ s of \d+ s left", said.getvalue()):
            time.sleep(0.001)
    assert by_share(lambda: 0.25)(10.0) == 40.0
