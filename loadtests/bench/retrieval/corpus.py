"""A tenant of any size: generated vectors, and texts of a few common and many rare words.

The vectors lie in clusters, like those of real texts, and are stored under the name of the real embedder.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np

from loadtests.bench.tenant import Tenant, connected, indexes_made_at_once
from loadtests.bench.vectors import Clustered

TENANT = "bench"
AT_A_TIME = 5_000
WORDS_IN_A_CHUNK = 100
WORDS = ["".join(syllables) for syllables in itertools.product(("ba", "lo", "ri", "ten", "mu"), repeat=6)]
TOO_COMMON = 200  # rank of words that are in every text, which a search cannot use


class Prose:
    """Texts of words drawn by rank as in natural languages, without the most common ones."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        weights = 1.0 / np.arange(TOO_COMMON + 1, TOO_COMMON + len(WORDS) + 1)
        self._upto = np.cumsum(weights / weights.sum())

    def text(self, words: int) -> str:
        drawn = np.searchsorted(self._upto, self._random.random(words))
        return " ".join(WORDS[min(place, len(WORDS) - 1)] for place in drawn)


async def fill(url: str, rows: int, model: str, source: Clustered) -> float:
    """Stores `rows` chunks and builds the indexes. Returns the seconds it took."""
    began, prose = time.perf_counter(), Prose(len(WORDS))
    async with connected(url) as connection, indexes_made_at_once(connection, "vectors_by_distance", "words_by_key"):
        tenant = Tenant(connection, TENANT)
        for first in range(0, rows, AT_A_TIME):
            count = min(AT_A_TIME, rows - first)
            await tenant.put_chunks([prose.text(WORDS_IN_A_CHUNK) for _ in range(count)], first)
            await tenant.put_vectors(source.draw(count), model, first)
    return time.perf_counter() - began


def questions(seed: int = 7) -> Iterator[str]:
    """Questions of the corpus's words, each of them once."""
    prose = Prose(seed)
    for number in itertools.count(1):
        yield f"{prose.text(8)} {number}?"
