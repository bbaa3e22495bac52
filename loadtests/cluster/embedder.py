"""A deterministic embedding model: each word of a text adds a direction derived from its digest.

Texts with common words are near each other. `takes_s` is a pass's time on the loop's clock; `fails` makes every pass
fail.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import numpy as np

from loadtests.cluster.words import words_of
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.modelprocess import ModelFailed, ModelHello

NAME, FINGERPRINT, TOKENIZER = "words", "words-1", "words"


class WordEmbedder:
    """A `Model` for `QueuedEmbedder`. `passes` counts the successful passes."""

    def __init__(self, *, takes_s: float = 0.002) -> None:
        self.takes_s = takes_s
        self.fails = False
        self.passes = 0

    async def load(self) -> ModelHello:
        return ModelHello(NAME, FINGERPRINT, tokenizer=TOKENIZER)

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        """A unit vector and a token count for each text. Raises ModelFailed."""
        await asyncio.sleep(self.takes_s)
        if self.fails:
            raise ModelFailed("as it was told to")
        self.passes += 1
        return [(vector_of(text), max(1, len(text.split()))) for text in texts]

    async def stop(self) -> None:
        pass


def vector_of(text: str) -> Floats:
    """The normalized sum of the words' directions; a text without words has a direction too."""
    vector = np.zeros(DIMENSIONS, np.float32)
    for word in sorted(words_of(text)) or [""]:
        vector += _direction(word)
    unit: Floats = vector / np.float32(np.linalg.norm(vector))
    return unit


def _direction(word: str) -> Floats:
    """Numbers of a digest, from -1 to 1."""
    digest = hashlib.shake_128(word.encode("utf-8", "surrogatepass")).digest(DIMENSIONS)
    return np.frombuffer(digest, np.uint8).astype(np.float32) / np.float32(127.5) - np.float32(1.0)
