"""Texts as vectors by the product's own model, for the benchmarks of the search."""

from __future__ import annotations

from collections.abc import Sequence

from services.retrieval.minilm import Floats, MiniLM, find_model


class Embedder:
    def __init__(self) -> None:
        self.model = MiniLM(find_model(""))

    @property
    def described(self) -> str:
        return f"model {self.model.name}, {self.model.fingerprint}"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """A vector of length 1 for each text."""
        return self.model.embed([self.model.tokenize(text) for text in texts])
