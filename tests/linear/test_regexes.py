"""No regular expression of the services is superlinear, and none stands there that nobody has judged.

`verdicts.csv` lists all of them: where each stands, how it is used, what it reads, and why it is linear. The steps are
counted by a matcher of ours (`backtracking`), since inside `re` they are one bytecode.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from tests.linear.backtracking import Program, literals
from tests.linear.regexes import MOST_GROWTH, Found, all_of, hostile, worst_growth

VERDICTS = Path(__file__).parent / "verdicts.csv"
FOUND = list(all_of())


def named(found: Found) -> str:
    return f"{found.file}:{found.name}"


def test_the_page_lists_every_regular_expression_and_no_other() -> None:
    with VERDICTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    listed = [(row["file"], row["name"]) for row in rows]
    assert sorted(set(listed)) == sorted({found.place for found in FOUND})
    assert len(listed) == len(set(listed))
    assert all(all(row.values()) for row in rows)


@pytest.mark.parametrize("found", FOUND, ids=map(named, FOUND))
def test_no_hostile_text_makes_a_regular_expression_superlinear(found: Found) -> None:
    growth, text, use = worst_growth(found)
    assert growth <= MOST_GROWTH, f"{use} of {text} takes {growth:.2f} times the steps when it doubles"


KNOWN = {
    "the JSON reader's strings, never closed": (r'"(?:[^"\\]|\\.)*"', "finditer"),
    "the same, possessive": (r'"(?:[^"\\]|\\.)*+"', "finditer"),
    "Go's duration, from each digit on": (r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|s|m|h)", "findall"),
    "a fence of code, in three parts that overlap": (r"^[ \t]*(?:```|~~~)[ \t]*(\w*)[^\n`]*$", "finditer"),
    "where msgspec's path begins": (r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", "match"),
    "nested repeats": (r"(?:a+)+b", "match"),
    "white space at an end": (r"\s+$", "search"),
}


@pytest.mark.parametrize(("pattern", "use"), KNOWN.values(), ids=KNOWN.keys())
def test_the_judge_finds_what_was_superlinear(pattern: str, use: str) -> None:
    flags = re.MULTILINE if "~~~" in pattern else re.DOTALL
    size = re.compile(pattern, flags)
    if "a+" in pattern:  # exponential: a text of 48 would take for ever
        steps = []
        for length in (6, 12):
            program = Program(size)
            program.match("a" * length)
            steps.append(program.steps)
        assert steps[1] > MOST_GROWTH * steps[0]
        return
    assert worst_growth(Found("", "", size, (use,)), (48,))[0] > MOST_GROWTH


def spans(pattern: re.Pattern[Any], text: Any) -> list[tuple[int, int]]:
    return [match.span() for match in pattern.finditer(text)]


@pytest.mark.parametrize("found", FOUND, ids=map(named, FOUND))
def test_the_matcher_finds_what_re_finds(found: Found) -> None:
    """On the texts that are judged, cut short; of patterns that match nothing `finditer` goes another way on."""
    pattern, program = found.pattern, Program(found.pattern)
    texts = list(hostile(pattern))
    for before, pump, after in texts[:: 1 + len(texts) // 24]:
        text: Any = before + pump * 3 + "".join(literals(pattern)[0][:2]) + after
        if program.is_bytes:
            text = text.encode("latin-1")
        whole, first = pattern.fullmatch(text), pattern.search(text)
        assert program.fullmatch(text) == (whole.end() if whole else None)
        assert program.search(text) == (first.span() if first else None)
        if pattern.search("" if isinstance(text, str) else b"") is None:
            assert program.finditer(text) == spans(pattern, text)


def test_a_request_id_is_matched_whole() -> None:
    """`match` with `$` would take one with a line end behind it."""
    (found,) = [found for found in FOUND if found.name == "_REQUEST_ID"]
    assert found.uses == ("fullmatch",)
