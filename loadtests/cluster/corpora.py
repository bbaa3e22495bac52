"""The contents of the fake PostgreSQL: each tenant's documents, chunks and vectors.

A corpus is immutable: a commit replaces it. So a reader sees one version, and a failed transaction leaves nothing.
Search is exact, by cosine distance of half-precision numbers, as in the database. Words and reciprocal rank follow
`words.sql` and `nearest.py`. The graph index is this exact search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loadtests.cluster.words import TOO_COMMON, asked_words, words_of
from services.retrieval.minilm import Floats
from services.retrieval.nearest import RRF_K

Place = tuple[str, int]  # document and chunk number
Scored = dict[Place, float]


@dataclass(frozen=True)
class Document:
    """One document: the text of each chunk, and by model the vectors of its embedded chunks."""

    root: str
    title: str
    content_hash: str
    version: int
    texts: Mapping[int, str] = field(default_factory=dict)
    vectors: Mapping[str, Mapping[int, Floats]] = field(default_factory=dict)

    @cached_property
    def bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts.values())

    @cached_property
    def words(self) -> Mapping[int, frozenset[str]]:
        return {ordinal: words_of(text) for ordinal, text in self.texts.items()}

    def lacking(self, model: str) -> list[int]:
        """Chunks that this model has not embedded, in order."""
        made = self.vectors.get(model, {})
        return sorted(ordinal for ordinal in self.texts if ordinal not in made)


@dataclass(frozen=True)
class Corpus:
    """One tenant's documents by id. `version` grows with every change; `before` is the previous one."""

    version: int
    before: int = 0
    documents: Mapping[str, Document] = field(default_factory=dict)

    @cached_property
    def chunks(self) -> int:
        return sum(len(document.texts) for document in self.documents.values())

    @cached_property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents.values())

    @cached_property
    def embedded(self) -> Mapping[str, int]:
        """Embedded chunks by model, without zeros."""
        counted: dict[str, int] = {}
        for document in self.documents.values():
            for model, made in document.vectors.items():
                counted[model] = counted.get(model, 0) + len(made)
        return {model: number for model, number in counted.items() if number}

    @cached_property
    def _matrices(self) -> dict[str, tuple[list[Place], Floats]]:
        return {}

    @cached_property
    def _places_of(self) -> Mapping[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for doc_id, document in self.documents.items():
            for ordinal, words in document.words.items():
                for word in words:
                    found.setdefault(word, []).append((doc_id, ordinal))
        return found

    def nearest(self, vector: Any, model: str, limit: int) -> list[tuple[Place, float]]:
        """The nearest chunks embedded by this model with their distances, ordered by distance and place."""
        if model not in self._matrices:
            self._matrices[model] = self._matrix(model)
        places, matrix = self._matrices[model]
        distances = _distances(matrix, vector).tolist()
        ranked = sorted(zip(places, distances, strict=True), key=lambda each: (_last(each[1]), each[0]))
        return ranked[: max(0, limit)]

    def _matrix(self, model: str) -> tuple[list[Place], Floats]:
        made = {
            (doc_id, ordinal): vector
            for doc_id, document in self.documents.items()
            for ordinal, vector in document.vectors.get(model, {}).items()
        }
        places = sorted(made)
        return places, np.stack([made[place] for place in places]) if places else np.empty((0, 0), np.float32)

    def worded(self, query: str, limit: int) -> list[tuple[Place, float]]:
        """The chunks that share the rarest words with the query and their weights, best first."""
        scores: Scored = {}
        for word in asked_words(query):
            having = self._places_of.get(word, [])
            if len(having) <= TOO_COMMON:
                weight = math.log(1 + (self.chunks + 0.5 - len(having)) / (len(having) + 0.5))
                for place in having:
                    scores[place] = scores.get(place, 0.0) + weight
        return sorted(scores.items(), key=lambda each: (-each[1], each[0]))[: max(0, limit)]

    def row(self, place: Place, distance: float) -> dict[str, object]:
        """A passage in the form of a search result."""
        doc_id, ordinal = place
        document = self.documents[doc_id]
        return {
            "doc_id": doc_id,
            "ordinal": ordinal,
            "text": document.texts[ordinal],
            "distance": distance,
            "version": document.version,
        }

    def search(self, vector: Any, limit: int, model: str) -> list[dict[str, object]]:
        found = self.nearest(vector, model, limit)
        return [{**self.row(place, distance), "corpus_version": self.version} for place, distance in found]

    def search_with_words(self, vector: Any, depth: int, model: str, query: str, top_k: int) -> list[dict[str, object]]:
        """Search by vectors and words, up to `depth` each; the `top_k` best by reciprocal rank."""
        near = {place: number for number, (place, _) in enumerate(self.nearest(vector, model, depth), start=1)}
        worded = {place: number for number, (place, _) in enumerate(self.worded(query, depth), start=1)}

        def order(place: Place) -> tuple[float, float, float]:
            ranks = [ranked[place] for ranked in (near, worded) if place in ranked]
            return -sum(1 / (RRF_K + rank) for rank in ranks), near.get(place, math.inf), worded.get(place, math.inf)

        best = sorted(near.keys() | worded.keys(), key=order)[: max(0, top_k)]
        made = {place: self.documents[place[0]].vectors.get(model, {}).get(place[1]) for place in best}
        return [
            {**self.row(place, _distance(found, vector)), "near": len(near), "corpus_version": self.version}
            for place, found in made.items()
            if found is not None
        ]


def halved(vector: Any) -> Floats:
    """A vector in the database's half precision, widened again without loss."""
    numbers: Floats = np.asarray(vector, dtype=np.float32).astype(np.float16).astype(np.float32)
    return numbers


def document(
    texts: Sequence[str], vectors: Sequence[Any], *, model: str, title: str = "t", version: int = 1, root: str = "r"
) -> Document:
    """A document with all chunks embedded, for direct insertion."""
    made = {ordinal: halved(vector) for ordinal, vector in enumerate(vectors)}
    return Document(root, title, "digest", version, dict(enumerate(texts)), {model: made})


def _distances(matrix: Floats, vector: Any) -> Floats:
    if not len(matrix):
        return np.empty(0, np.float32)
    asked = halved(vector)
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.linalg.norm(matrix, axis=1).astype(np.float64) * float(np.linalg.norm(asked))
        likeness = (matrix @ asked).astype(np.float64) / norms
    distances: Floats = 1.0 - np.clip(likeness, -1.0, 1.0)
    return distances


def _distance(made: Floats, vector: Any) -> float:
    return float(_distances(made[np.newaxis, :], vector)[0])


def _last(distance: float) -> tuple[bool, float]:
    """Sorts NaN after all numbers."""
    return (True, 0.0) if math.isnan(distance) else (False, distance)
