"""Vectors of real text that every installation has, also offline: sentences of the docstrings and comments of Python's
library and of the installed packages. A digest decides their order, so that the first ones are a sample of all.

Embedding 100,000 takes a quarter of an hour, once. They are kept in a folder, and the next run resumes there:

    sentences.txt            all sentences, one a line, as they were found the first time
    <model's fingerprint>    384 float32 numbers for each of the first lines, as far as they are embedded
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from loadtests.paths import ROOT
from loadtests.report.progress import Say
from services.retrieval.minilm import DIMENSIONS, Floats

FOLDER = ROOT / ".weir" / "recall"
AT_ONCE = 256
SAY_EVERY = 40 * AT_ONCE
ROW_BYTES = DIMENSIONS * 4
MIN_LENGTH, MAX_LENGTH = 24, 300  # characters
MIN_WORDS = 5
MIN_LETTERS = 0.7  # of all characters: the rest is code, tables, rulers

_QUOTED = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
_COMMENTS = re.compile(r"(?:^[ \t]*#.*\n)+", re.MULTILINE)
_MARK = re.compile(r"^[ \t]*#+[ \t]?", re.MULTILINE)
_BETWEEN = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(`])|\n\s*\n")
_WORD = re.compile(r"[A-Za-z]+")


class TooFewSentences(Exception):
    """The installation has fewer sentences than requested; the message has both numbers."""


def vectors(
    number: int, embed: Callable[[Sequence[str]], Floats], fingerprint: str, say: Say, folder: Path = FOLDER
) -> Floats:
    """The vectors of the first `number` sentences, embedding the missing ones. Raises TooFewSentences."""
    texts = _kept_sentences(folder, say)
    if len(texts) < number:
        raise TooFewSentences(f"the installed packages hold {len(texts):,} sentences, and {number:,} are needed")
    path = folder / fingerprint
    path.touch()
    have = path.stat().st_size // ROW_BYTES
    if have < number:
        os.truncate(path, have * ROW_BYTES)  # the last one may be incomplete
    for first in range(have, number, AT_ONCE):
        if (first - have) % SAY_EVERY == 0:
            say(f"{first:,} of {number:,} sentences embedded")
        with path.open("ab") as file:
            file.write(embed(texts[first : min(first + AT_ONCE, number)]).tobytes())
    kept: Floats = np.fromfile(path, np.float32, count=number * DIMENSIONS).reshape(number, DIMENSIONS)
    return kept


def _kept_sentences(folder: Path, say: Say) -> list[str]:
    path = folder / "sentences.txt"
    if not path.exists():
        say("collecting sentences from the installed packages")
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(sentences()), encoding="utf-8")
        partial.rename(path)
    return path.read_text(encoding="utf-8").split("\n")


def sentences(seed: int = 1) -> list[str]:
    """All distinct sentences, in an order that does not depend on where they were found."""
    return sorted(set(_of_packages()), key=lambda sentence: hashlib.sha256(f"{seed} {sentence}".encode()).digest())


def of_source(source: str) -> Iterator[str]:
    """The sentences of a Python file's docstrings, other long strings, and comments."""
    for quoted in _QUOTED.finditer(source):
        yield from of_text(quoted[1] or quoted[2] or "")
    for block in _COMMENTS.finditer(source):
        yield from of_text(_MARK.sub("", block[0]))


def of_text(text: str) -> Iterator[str]:
    """The parts that start and end like a sentence and are mostly words."""
    for part in _BETWEEN.split(text):
        sentence = " ".join(part.split())
        if not MIN_LENGTH <= len(sentence) <= MAX_LENGTH or not sentence[0].isupper() or sentence[-1] not in ".!?":
            continue
        words = _WORD.findall(sentence)
        if len(words) >= MIN_WORDS and sum(map(len, words)) >= MIN_LETTERS * len(sentence):
            yield sentence


def _of_packages() -> Iterator[str]:
    """The sentences of the installed packages, which are in Python's library or beside it (virtual environments)."""
    for folder in {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}:
        for path in Path(folder).rglob("*.py"):
            try:
                yield from of_source(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
