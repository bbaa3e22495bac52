"""Generated vectors: clusters on the unit sphere, and questions from the same clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.retrieval.minilm import DIMENSIONS, Floats

CLUSTERS = 200
SPREAD = 0.8  # length of what is added to a cluster's middle, which has length 1


class Source:
    """The same vectors for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._middles = _unit(self._random.standard_normal((CLUSTERS, DIMENSIONS), dtype=np.float32))

    def draw(self, number: int) -> Floats:
        """That many vectors of length 1."""
        noise = self._random.standard_normal((number, DIMENSIONS), dtype=np.float32)
        clusters = self._random.integers(0, CLUSTERS, number)
        return _unit(self._middles[clusters] + noise * np.float32(SPREAD / DIMENSIONS**0.5))


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the ordinals of the chunks that are nearest to it."""

    vector: Floats
    nearest: frozenset[int]


def questions(source: Source, kept: Floats, number: int, top_k: int) -> list[Asked]:
    """Questions to a tenant that keeps these vectors, with the right answers."""
    asked = source.draw(number)
    order = np.argsort(-(asked @ kept.T), axis=1)[:, :top_k]
    return [Asked(vector, frozenset(row.tolist())) for vector, row in zip(asked, order, strict=True)]


def _unit(vectors: Floats) -> Floats:
    made: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return made
