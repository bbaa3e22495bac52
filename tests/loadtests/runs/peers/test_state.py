"""A run that was cut short goes on where it stopped; whoever names a cell has it played again."""

from __future__ import annotations

import math
from pathlib import Path

from loadtests.report.figure import Figure, at_most
from loadtests.runs.peers import state
from loadtests.runs.peers.cell import NOTHING, Cell

EVERY = [(case, gateway) for case in ("one", "two") for gateway in ("Weir", "other")]
HERE = "this machine, this commit"


def cells(*pairs: tuple[str, str], on: str = HERE, fault: str = "") -> state.Cells:
    return {pair: Cell(*pair, figures=[Figure("p50", 3.0, "ms")], on=on, fault=fault) for pair in pairs}


def test_what_is_kept_is_read_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "out" / "peers.json"
    kept = {("one", "Weir"): Cell("one", "Weir", [at_most("p95", NOTHING, 400, "ms")], True, "", HERE, [{"name": "x"}])}
    state.write(file, kept)
    assert "NaN" not in file.read_text()  # which is not JSON
    (read,) = state.read(file).values()
    assert math.isnan(read.figures[0].value)
    assert (read.key, read.doubtful, read.on, read.runs) == (("one", "Weir"), True, HERE, [{"name": "x"}])
    assert (read.figures[0].wanted, read.figures[0].held) == ("≤ 400 ms", False)
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_is_none_of_ours_keeps_nothing(tmp_path: Path) -> None:
    assert state.read(tmp_path / "none.json") == {}
    for text in ("", "[]", "{}", '{"cells": [{"case": 1}]}'):
        (tmp_path / "peers.json").write_text(text)
        assert state.read(tmp_path / "peers.json") == {}


def test_a_run_goes_on_with_what_is_missing() -> None:
    kept, pairs = state.to_play(cells(*EVERY[:3]), EVERY, EVERY, HERE)
    assert list(kept) == EVERY[:3]
    assert pairs == EVERY[3:]


def test_what_failed_or_was_played_elsewhere_is_missing() -> None:
    found = cells(EVERY[0]) | cells(EVERY[1], fault="it ended") | cells(EVERY[2], on="another commit")
    kept, pairs = state.to_play(found, EVERY, EVERY, HERE)
    assert list(kept) == EVERY[:1]
    assert pairs == EVERY[1:]


def test_a_run_that_was_finished_begins_again() -> None:
    assert state.to_play(cells(*EVERY), EVERY, EVERY, HERE) == ({}, EVERY)


def test_a_cell_that_is_named_is_played_again_beside_all_that_is_kept() -> None:
    found = cells(*EVERY, on="another commit")
    kept, pairs = state.to_play(found, EVERY, EVERY[:1], HERE)
    assert kept == found
    assert pairs == EVERY[:1]
