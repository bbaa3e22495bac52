"""all-MiniLM-L6-v2 once more, as plainly as it can be written: float64, the exact erf, one text, one head at a time.

Shares no code with the service: another reader of the weights, no packing, no fused matrices, no polynomial. It made
data/minilm_vectors.json:

    python -m tests.retrieval.minilm_reference > tests/retrieval/data/minilm_vectors.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from services.retrieval.minilm import find_model

TEXTS = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "a",
    "Überlastete Wehre öffnen ihre Schützen; 水が溢れる前に。",
    "Admission control decides at the door whether a request can still make its deadline. " * 4,
    "overload " * 400,
]


def reference_vector(folder: Path, text: str, pooling: str = "mean", layers: int = 6) -> np.ndarray[Any, Any]:
    """The unit vector of one text."""
    w = {name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    ids = tokenizer.encode(text).ids
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = _norm(x + w["embeddings.token_type_embeddings.weight"][0], w, "embeddings.LayerNorm")
    for number in range(layers):
        name = f"encoder.layer.{number}"
        q, k, v = (_linear(x, w, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for head in range(12):
            part = slice(head * 32, head * 32 + 32)
            weights = np.exp(q[:, part] @ k[:, part].T / math.sqrt(32))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, part])
        attended = _linear(np.concatenate(heads, axis=1), w, f"{name}.attention.output.dense")
        x = _norm(x + attended, w, f"{name}.attention.output.LayerNorm")
        wide = _linear(x, w, f"{name}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = _norm(x + _linear(wide, w, f"{name}.output.dense"), w, f"{name}.output.LayerNorm")
    pooled = x[0] if pooling == "cls" else x.mean(axis=0)
    vector: np.ndarray[Any, Any] = pooled / math.sqrt(float(pooled @ pooled))
    return vector


def _linear(x: np.ndarray[Any, Any], w: dict[str, Any], name: str) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: np.ndarray[Any, Any], w: dict[str, Any], name: str) -> Any:
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]


if __name__ == "__main__":
    vectors = {text: [round(float(each), 8) for each in reference_vector(find_model(), text)] for text in TEXTS}
    json.dump(vectors, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write("\n")
