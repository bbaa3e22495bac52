"""Sentences and what the product's model makes of them, kept in a folder: 100,000 are embedded once, in a quarter hour.

    sentences.txt            all of them, a line each, as they were found the first time
    <model's fingerprint>    384 numbers of four bytes for each of the first lines: as far as it has come

What was embedded stays, whatever ends the process; the next one goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from loadtests.bench.recall.sentences import sentences
from loadtests.paths import ROOT
from loadtests.report.progress import Say
from services.retrieval.minilm import DIMENSIONS, Floats

FOLDER = ROOT / ".weir" / "recall"
AT_ONCE = 256
SAY_EVERY = 40 * AT_ONCE
ROW_BYTES = DIMENSIONS * 4
SEED = 1


class TooFewSentences(Exception):
    """This installation has fewer of them than were asked for; the message says how many."""


class Model(Protocol):
    """An encoder of sentences, as `minilm` is one."""

    fingerprint: str

    def tokenize(self, text: str) -> list[int]: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats: ...


def embedded(number: int, say: Say, model: Model, folder: Path = FOLDER) -> Floats:
    """The vectors of the first so many sentences, embedding those that were not yet. Raises TooFewSentences."""
    texts = _texts(folder, say)
    if len(texts) < number:
        raise TooFewSentences(f"the installed packages hold {len(texts):,} sentences, and {number:,} are needed")
    path = folder / model.fingerprint
    path.touch()
    have = path.stat().st_size // ROW_BYTES
    if have < number:
        os.truncate(path, have * ROW_BYTES)  # the last one may be half there
    for first in range(have, number, AT_ONCE):
        if (first - have) % SAY_EVERY == 0:
            say(f"{first:,} of {number:,} sentences embedded")
        made = model.embed([model.tokenize(text) for text in texts[first : min(first + AT_ONCE, number)]])
        with path.open("ab") as file:
            file.write(made.tobytes())
    kept: Floats = np.fromfile(path, np.float32, count=number * DIMENSIONS).reshape(number, DIMENSIONS)
    return kept


def _texts(folder: Path, say: Say) -> list[str]:
    path = folder / "sentences.txt"
    if not path.exists():
        say("sentences are looked for in the installed packages")
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text("\n".join(sentences(SEED)), encoding="utf-8")
        partial.rename(path)
    return path.read_text(encoding="utf-8").split("\n")
