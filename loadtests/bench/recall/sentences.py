"""Real text that every installation has, also offline: sentences of the docstrings and comments of Python's own
library and of the packages beside it.

Their order is decided by a digest of each sentence: the first so many of them are a sample of all.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEAST, MOST = 24, 300  # characters
LEAST_WORDS = 5
LEAST_LETTERS = 0.7  # of all characters: the rest is code, tables, rulers

_QUOTED = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
_COMMENTS = re.compile(r"(?:^[ \t]*#.*\n)+", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*#+[ \t]?", re.MULTILINE)
_BETWEEN = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(`])|\n\s*\n")
_WORD = re.compile(r"[A-Za-z]+")


def sentences(seed: int) -> list[str]:
    """All different ones, in an order that has nothing to do with where they stood."""
    return sorted(set(_of_packages()), key=lambda sentence: hashlib.sha256(f"{seed} {sentence}".encode()).digest())


def of_source(source: str) -> Iterator[str]:
    """The sentences of a Python file's docstrings, other long strings, and comments."""
    for quoted in _QUOTED.finditer(source):
        yield from of_text(quoted[1] or quoted[2] or "")
    for block in _COMMENTS.finditer(source):
        yield from of_text(_MARK.sub("", block[0]))


def of_text(text: str) -> Iterator[str]:
    """What begins like a sentence, ends like one and is mostly words."""
    for part in _BETWEEN.split(text):
        sentence = " ".join(part.split())
        if not LEAST <= len(sentence) <= MOST or not sentence[0].isupper() or sentence[-1] not in ".!?":
            continue
        words = _WORD.findall(sentence)
        if len(words) >= LEAST_WORDS and sum(map(len, words)) >= LEAST_LETTERS * len(sentence):
            yield sentence


def _of_packages() -> Iterator[str]:
    """Packages lie inside Python's own library, or outside it where there is a virtual environment."""
    for folder in {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}:
        for path in Path(folder).rglob("*.py"):
            try:
                yield from of_source(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
