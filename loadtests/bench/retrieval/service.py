"""`python -m loadtests.bench.retrieval.service VECTORS FINGERPRINT`: retrieval with precomputed vectors.

What remains is the rest of the service, the embedder's queue and batches included. A question gets a vector by its
digest, not by its meaning; a search takes as long for one as for the other.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.retrieval.app import build
from services.retrieval.config import RetrievalSettings
from services.retrieval.minilm import Floats, find_model
from services.retrieval.modelprocess import ModelHello
from services.runtime.serve import run
from services.runtime.settings import load

TOKENS = 12


class Precomputed:
    """An embedder that only looks vectors up."""

    def __init__(self, vectors: Floats, fingerprint: str) -> None:
        self._vectors = vectors
        self._fingerprint = fingerprint

    async def load(self) -> ModelHello:
        return ModelHello("precomputed", self._fingerprint)

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        return [(self._vectors[zlib.crc32(text.encode()) % len(self._vectors)], TOKENS) for text in texts]

    async def stop(self) -> None:
        return None


def main() -> int:
    vectors, fingerprint = sys.argv[1:]
    settings = load(RetrievalSettings)
    model = Precomputed(np.load(Path(vectors)), fingerprint)
    return run(lambda: build(settings, find_model(settings.embed_model_path), embeds=model))


if __name__ == "__main__":
    raise SystemExit(main())
