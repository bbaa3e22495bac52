"""Vectors to search among and to ask with: generated ones, and what the product's model makes of real sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.retrieval.minilm import Floats


class Source(Protocol):
    """Where vectors come from: each one once."""

    def draw(self, number: int) -> Floats:
        """That many vectors of length 1."""


class Kept:
    """Vectors that were made before, in their order: what was drawn as a question is never stored as a chunk."""

    def __init__(self, vectors: Floats) -> None:
        self._vectors = vectors
        self._next = 0

    def draw(self, number: int) -> Floats:
        first, self._next = self._next, self._next + number
        if self._next > len(self._vectors):
            raise ValueError(f"{len(self._vectors)} vectors were made, and {self._next} are needed")
        return self._vectors[first : self._next]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the ordinals of the chunks that are nearest to it."""

    vector: Floats
    nearest: frozenset[int]


def answered(asked: Floats, kept: Floats, top_k: int) -> list[Asked]:
    """Questions to a tenant that keeps these vectors, with the right answers."""
    answers = []
    for vector in asked:  # one at a time: all cosines of all questions at once would be hundreds of megabytes
        cosines = kept @ vector
        best = np.argpartition(-cosines, min(top_k, len(kept)) - 1)[:top_k]
        answers.append(Asked(vector, frozenset(best.tolist())))
    return answers
