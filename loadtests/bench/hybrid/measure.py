"""How well passages are found by meaning, by words, and by both: questions asked of Weir's own documents.

For each question the place of the first passage that answers it counts: its reciprocal is averaged (MRR@10), and the
share of questions is taken that have it among the first five (recall@5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from loadtests.paths import ROOT
from services.retrieval.chunks import chunk
from services.retrieval.documents import parse
from services.retrieval.minilm import MiniLM

QUESTIONS = Path(__file__).with_name("questions.yaml")
DOCUMENTS = ROOT / "docs"
RESULTS = "results"
LOOKED_AT, FIRST = 10, 5
CHUNK_TOKENS, OVERLAP_TOKENS = 200, 30  # the defaults of the settings


@dataclass(frozen=True)
class Question:
    """What is asked, and by what an answering passage is known."""

    kind: str
    asked: str
    documents: frozenset[str]
    has: str

    def answered(self, doc_id: str, text: str) -> bool:
        """Whether this passage answers it."""
        return doc_id in self.documents and self.has in text


@dataclass
class Places:
    """Of each question the place of the first passage that answers it, from 1; 0: none among those looked at."""

    way: str
    kind: str
    places: list[int] = field(default_factory=list)

    @property
    def mrr(self) -> float:
        """The mean of the reciprocal places."""
        return sum(1 / place for place in self.places if place) / len(self.places)

    @property
    def recall(self) -> float:
        """The share of questions that are answered among the first."""
        return sum(0 < place <= FIRST for place in self.places) / len(self.places)


def read() -> list[Question]:
    """The committed questions."""
    kinds = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return [
        Question(kind, each["asked"], frozenset(each["in"]), each["has"])
        for kind, group in kinds.items()
        for each in group
    ]


def documents(model: MiniLM) -> dict[str, list[str]]:
    """The chunks of each document, as an ingest cuts them."""
    found = {}
    for path in sorted(DOCUMENTS.rglob("*.md")):
        doc_id = path.relative_to(DOCUMENTS).as_posix()
        if not doc_id.startswith(RESULTS):
            found[doc_id] = chunk(
                parse(path.name, path.read_bytes()).sections,
                model.count_tokens,
                max_tokens=CHUNK_TOKENS,
                overlap_tokens=OVERLAP_TOKENS,
            )
    return found


def place(question: Question, passages: Sequence[tuple[str, str]]) -> int:
    """Of the first passage (document, text) that answers it, from 1; 0: none does."""
    answers = (number for number, passage in enumerate(passages, start=1) if question.answered(*passage))
    return next(answers, 0)
