"""The decision records: each in the index under its own title, state and date, one page, with its parts and its proof.

A record that is missing from the index is not found; one that says nothing of what enforces it is an opinion. Where a
later record supersedes or extends an earlier one, the state of the earlier names the later, and the line `Changes` of
the later names the earlier.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROW = re.compile(r"^\| \[(\d{3})\]\(([^)]+)\) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
SUBJECT = re.compile(r"^\| [^|\[]+ \| ((?:\d{3}(?:, )?)+) \|$", re.MULTILINE)
TITLE = re.compile(r"^# (\d{3}): (.+)$", re.MULTILINE)
STATE = re.compile(r"^State: (.+)$", re.MULTILINE)
DATE = re.compile(r"^Date: (\d{4}-\d\d-\d\d)$", re.MULTILINE)
CHANGES = re.compile(r"^Changes: (.+)$", re.MULTILINE)
LATER = r"\d{3}(?:, \d{3})*"
STATES = re.compile(rf"(?:proposed|accepted|superseded (?:in part )?by {LATER})(?:; extended by {LATER})?")
NUMBER = re.compile(r"\b\d{3}\b")
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
    rows = {name: (number, title, state, date) for number, name, title, state, date in ROW.findall(told)}
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
    texts = {name: (folder / name).read_text("utf-8") for name in records}
    for name, text in texts.items():
        yield from (f"{name}: {fault}" for fault in _of_one(text, name, rows.get(name)))
    yield from _one_sided({name[:3]: text for name, text in texts.items()})


def _one_sided(texts: Mapping[str, str]) -> Iterator[str]:
    """Records of which one names the other as later or earlier, and the other does not."""
    later = {(number, other) for number, text in texts.items() for other in _named(STATE, text)}
    earlier = {(other, number) for number, text in texts.items() for other in _named(CHANGES, text)}
    yield from (f"{old}: its state does not name {new}, which changes it" for old, new in sorted(earlier - later))
    yield from (
        f"{new}: does not say that it changes {old}, whose state names it" for old, new in sorted(later - earlier)
    )


def _named(line: re.Pattern[str], text: str) -> list[str]:
    found = line.search(text)
    return NUMBER.findall(_plain(found[1])) if found else []


def _of_one(text: str, name: str, row: tuple[str, str, str, str] | None) -> Iterator[str]:
    title, state, date = TITLE.search(text), STATE.search(text), DATE.search(text)
    if title is None or title[1] != name[:3]:
        yield f"its first line is not `# {name[:3]}: ...`"
    if state is None:
        yield "says no state"
    elif not STATES.fullmatch(_plain(state[1])):
        yield f"its state is {_plain(state[1])!r}, which is none"
    if date is None:
        yield "says no date"
    if row and title and row[:2] != (title[1], title[2]):
        yield f"the index calls it {row[0]}, {row[1]!r}"
    if row and state and _plain(state[1]) != _plain(row[2]):
        yield f"its state is {_plain(state[1])!r}, and {_plain(row[2])!r} in the index"
    if row and date and date[1] != row[3]:
        yield f"its date is {date[1]}, and {row[3]} in the index"
    for part in PARTS:
        if f"\n## {part}\n" not in text:
            yield f"has no part {part!r} with a line of its own"
    if not PROOF.search(text.rpartition("## Enforced by")[2]):
        yield "names no test, lint rule or command that enforces it"
    if (lines := text.count("\n")) > MOST_LINES:
        yield f"has {lines} lines; a record is one page, {MOST_LINES} at most"


def _plain(state: str) -> str:
    return re.sub(r"\[(\d{3})\]\([^)]*\)", r"\1", state)
