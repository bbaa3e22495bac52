"""Random vectors and queries from a seed."""

from __future__ import annotations

import numpy as np

from services.retrieval.minilm import DIMENSIONS, Floats

CLUSTERS = 200
SPREAD = 0.8  # length of the noise around a cluster's unit-length centre


class Clustered:
    """Unit vectors in clusters, like those of real texts; deterministic by seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._middles = unit(self._random.standard_normal((CLUSTERS, DIMENSIONS), dtype=np.float32))

    def draw(self, number: int) -> Floats:
        """Draws `number` vectors, of shape (number, DIMENSIONS)."""
        noise = self._random.standard_normal((number, DIMENSIONS), dtype=np.float32)
        middles = self._middles[self._random.integers(0, CLUSTERS, number)]
        return unit(middles + noise * np.float32(SPREAD / DIMENSIONS**0.5))


def unit(vectors: Floats) -> Floats:
    made: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return made
