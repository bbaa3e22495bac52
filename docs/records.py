"""The decision records: each in the index under its own title and state, one page, with its parts and its proof.

A record that is missing from the index is not found; one that says nothing of what enforces it is an opinion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROW = re.compile(r"^\| \[(\d{3})\]\(([^)]+)\) \| (.+?) \| (.+?) \|$", re.MULTILINE)
SUBJECT = re.compile(r"^\| [^|\[]+ \| ((?:\d{3}(?:, )?)+) \|$", re.MULTILINE)
TITLE = re.compile(r"^# (\d{3}): (.+)$", re.MULTILINE)
STATE = re.compile(r"^State: (.+)$", re.MULTILINE)
RECORD = re.compile(r"^\d{3}-[a-z0-9-]+\.md$")
PARTS = ("Context", "Decision", "Consequences", "Alternatives", "Enforced by")
PROOF = re.compile(r"`(?:tests/|python -m |make |lint-imports|make$)|`make\s|import contract")
MOST_LINES = 100  # a page, and a little


def faults(folder: Path) -> Iterator[str]:
    """One line for each fault of the index and of the records; none where there is no index."""
    index = folder / "README.md"
    if not index.exists():
        return
    told = index.read_text("utf-8")
    rows = {name: (number, title, state) for number, name, title, state in ROW.findall(told)}
    subjects = Counter(number for line in SUBJECT.findall(told) for number in line.split(", "))
    records = sorted(path.name for path in folder.iterdir() if RECORD.match(path.name))
    for name in records:
        if name not in rows:
            yield f"{name}: is not in the index"
    for name in rows:
        if name not in records:
            yield f"README.md: {name}: the index has it, the folder has not"
    numbers = Counter(name[:3] for name in records)
    yield from (f"{number}: {count} records have this number" for number, count in numbers.items() if count > 1)
    if subjects:
        yield from (
            f"README.md: {number} stands under {subjects[number]} subjects"
            for number in numbers
            if subjects[number] != 1
        )
    for name in records:
        yield from (f"{name}: {fault}" for fault in _of_one((folder / name).read_text("utf-8"), name, rows.get(name)))


def _of_one(text: str, name: str, row: tuple[str, str, str] | None) -> Iterator[str]:
    title, state = TITLE.search(text), STATE.search(text)
    if title is None or title[1] != name[:3]:
        yield f"its first line is not `# {name[:3]}: ...`"
    if state is None:
        yield "says no state"
    if row and title and row[:2] != (title[1], title[2]):
        yield f"the index calls it {row[0]}, {row[1]!r}"
    if row and state and _plain(state[1]) != _plain(row[2]):
        yield f"its state is {_plain(state[1])!r}, and {_plain(row[2])!r} in the index"
    for part in PARTS:
        if f"\n## {part}\n" not in text:
            yield f"has no part {part!r} with a line of its own"
    if not PROOF.search(text.rpartition("## Enforced by")[2]):
        yield "names no test, lint rule or command that enforces it"
    if (lines := text.count("\n")) > MOST_LINES:
        yield f"has {lines} lines; a record is one page, {MOST_LINES} at most"


def _plain(state: str) -> str:
    return re.sub(r"\[(\d{3})\]\([^)]*\)", r"\1", state)
