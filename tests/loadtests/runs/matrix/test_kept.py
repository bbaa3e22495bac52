"""A run that is interrupted goes on where it was, and results of other code are not mixed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.runs.matrix import kept
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.kept import Kept
from tests.loadtests.runs.matrix.made import cell, series


def opened(path: Path, said: list[str], code: str = "abc", *, forget: bool = False) -> Kept:
    return Kept(path, Series(code), said.append, forget=forget)


def test_each_result_is_on_disk_as_soon_as_it_is_kept(tmp_path: Path) -> None:
    path, said = tmp_path / "out" / "series.json", list[str]()
    first = opened(path, said)
    first.keep(cell("baseline"))
    first.keep(cell("burst", fault="the stack has ended"))
    again = opened(path, said)
    assert again.series.cells == first.series.cells
    assert again.has("baseline weir")
    assert not again.has("burst weir")  # what could not be played is played again
    assert not again.has("baseline fifo")
    assert said == []


def test_results_of_other_code_are_dropped_with_a_word(tmp_path: Path) -> None:
    path, said = tmp_path / "series.json", list[str]()
    opened(path, said).keep(cell("baseline"))
    assert not opened(path, said, "def").has("baseline weir")
    assert "1 results of other code" in said[0]


def test_a_fresh_run_forgets_and_a_broken_file_is_said_to_be_one(tmp_path: Path) -> None:
    path, said = tmp_path / "series.json", list[str]()
    opened(path, said).keep(cell("baseline"))
    assert not opened(path, said, forget=True).has("baseline weir")
    path.write_text('{"code": "abc", "cells": {"baseline')
    assert not opened(path, said).has("baseline weir")
    assert "cannot be read" in said[0]


def test_what_is_read_is_what_was_written_a_line_for_each_cell(tmp_path: Path) -> None:
    path = tmp_path / "series.json"
    for made in (series(), series(cell("baseline"), cell("burst", "fifo"))):
        kept.write(path, made)
        assert kept.read(path) == made
        assert len(path.read_text().splitlines()) == 6 + max(1, len(made.cells))  # in the simulator: nothing
    assert [each.name for each in tmp_path.iterdir()] == ["series.json"]  # nothing half written stays


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What counts, and what does not."""
    for name in (
        "services/router/app.py",
        "services/README.md",
        "loadtests/runs/matrix/page.py",
        "docs/page.md",
        "tests/a.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    ["docs/page.md", "tests/a.py", "README.md", "docs/results/matrix.json", "services/README.md", "loadtests/NOTES.md",
     "services/router/app.pyc"],
)  # fmt: skip
def test_documents_tests_and_results_change_nothing_of_what_is_measured(checkout: Path, name: str) -> None:
    before = kept.code(checkout)
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("2")
    assert kept.code(checkout) == before


def test_any_change_of_the_code_is_other_code_committed_or_not(checkout: Path) -> None:
    router, page = checkout / "services" / "router" / "app.py", checkout / "loadtests" / "runs" / "matrix" / "page.py"
    seen = [kept.code(checkout)]
    for change in (
        lambda: router.write_text("2"),
        lambda: router.write_text("3"),  # one change after another: neither is taken for the other
        lambda: page.write_text("2"),
        lambda: (checkout / "services" / "new.toml").write_text("2"),
        lambda: router.rename(router.with_name("other.py")),
        page.unlink,
    ):
        change()
        seen.append(kept.code(checkout))
    assert len(set(seen)) == len(seen)
    page.write_text("2")
    assert kept.code(checkout) == seen[-2]  # what is as it was is the same


def test_the_code_that_is_here_has_a_name() -> None:
    assert kept.code() == kept.code() != kept.code(Path("/nowhere"))
