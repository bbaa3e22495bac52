"""What has been played, in a file: a run that was cut short goes on where it stopped, and loses one cell at most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from loadtests.runs.peers.cell import Cell, cell

Cells = dict[tuple[str, str], Cell]
Pair = tuple[str, str]


def read(file: Path) -> Cells:
    """What is there; nothing where the file is not, or is not ours."""
    try:
        cells = [cell(raw) for raw in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {each.key: each for each in cells}


def write(file: Path, cells: Cells) -> None:
    """All of it, or the old file stays as it was."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"cells": [each.as_dict() for each in cells.values()]}) + "\n", encoding="utf-8")
    new.replace(file)


def to_play(kept: Cells, every: Sequence[Pair], chosen: Sequence[Pair], on: str) -> tuple[Cells, list[Pair]]:
    """What stays of what is kept, and what is to be played.

    Whoever names a case or a gateway wants it played again, beside what was kept of the others. Without a name, what
    is missing is played: cells of another machine, commit or day, faulty ones, and all of them if none is missing.
    """
    if len(chosen) < len(every):
        return dict(kept), list(chosen)
    stay = {key: each for key, each in kept.items() if each.on == on and not each.fault and key in every}
    missing = [pair for pair in every if pair not in stay]
    return (stay, missing) if missing else ({}, list(every))
