"""A sentence encoder in numpy: all-MiniLM-L6-v2, a six-layer BERT of 384 dimensions, without torch.

    tokens -> word + position + type -> 6 x (attention, feed-forward; each added and normalised) -> mean -> unit length

Texts are packed, not padded: linear layers see the tokens of all texts as one matrix, and attention runs text by text.
So there is no mask, and a batch costs no more than its tokens. `modelfolder.py` says which other models fit.

Exact to 1e-6 against float64 (tested). GELU's erf is Abramowitz and Stegun 7.1.26, |error| <= 1.5e-7, about one unit in
the last place of float32 at 1. Weights are memory-mapped: of the word table, half of the 90 MB, only rows that occur in
texts are read.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from services.retrieval import bundled
from services.retrieval.modelfolder import (
    DIMENSIONS,
    MAX_TOKENS,
    ModelUnusable,
    Shape,
    find_model,
    name_of,
    shape_of,
    tokenizer_digest,
)
from services.retrieval.weights import Floats, map_file, read_safetensors

__all__ = ["DIMENSIONS", "MAX_TOKENS", "Floats", "MiniLM", "ModelUnusable", "find_model"]

USUAL = Shape(layers=6, heads=12, epsilon=1e-12, pooling="mean", max_tokens=MAX_TOKENS)  # all-MiniLM-L6-v2's
GELU_ROWS = 32
PACKED_TOKENS = 512  # max tokens in a pass, unless one text alone has more; bounds memory


@dataclass(frozen=True, slots=True)
class _Layer:
    """One block. Query, key and value are one matrix; matrices are stored so that `x @ w` needs no transpose."""

    qkv: tuple[Floats, Floats]
    attended: tuple[Floats, Floats]
    attended_norm: tuple[Floats, Floats]
    wide: tuple[Floats, Floats]
    narrow: tuple[Floats, Floats]
    narrow_norm: tuple[Floats, Floats]


class MiniLM:
    """The model: texts in, unit vectors out. One thread may tokenize while another embeds, but no more than that."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelUnusable, also for a bundled model that is not the published one."""
        bundled.check(folder)
        self._shape = shape_of(folder)
        self.name = name_of(folder)
        self._epsilon = np.float32(self._shape.epsilon)
        self._tokenizer = _tokenizer(folder)
        self.tokenizer = tokenizer_digest(folder)
        mapped = map_file(folder / "model.safetensors")
        tensors = read_safetensors(mapped)
        self.fingerprint = _fingerprint(tensors, self._shape)
        try:
            self._load(tensors)
        except KeyError as error:
            raise ModelUnusable(f"EMBED_MODEL_PATH: the weights in {folder} lack {error.args[0]}") from None
        mapped.madvise(mmap.MADV_DONTNEED)  # the layers are copied: release their pages

    def _load(self, tensors: dict[str, Floats]) -> None:
        self._words = tensors["embeddings.word_embeddings.weight"]
        types = tensors["embeddings.token_type_embeddings.weight"]
        self._positions = tensors["embeddings.position_embeddings.weight"][: self._shape.max_tokens] + types[0]
        self._norm = _pair(tensors, "embeddings.LayerNorm")
        self._layers = [_layer(tensors, f"encoder.layer.{i}") for i in range(self._shape.layers)]

    def tokenize(self, text: str) -> list[int]:
        """The token ids that the model reads: special tokens at both ends, cut to the longest text it reads."""
        ids: list[int] = self._tokenizer.encode(text).ids
        max_tokens = self._shape.max_tokens
        return ids if len(ids) <= max_tokens else [*ids[: max_tokens - 1], ids[-1]]

    def count_tokens(self, text: str) -> int:
        """The tokens of a text without special tokens and without a limit, by which chunks are measured."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats:
        """One unit vector for each tokenized text, in order."""
        vectors = np.empty((len(texts), DIMENSIONS), np.float32)
        first = 0
        while first < len(texts):
            last = first + packable([len(ids) for ids in texts[first:]])
            vectors[first:last] = self._encode(texts[first:last])
            first = last
        return vectors

    def _encode(self, texts: Sequence[Sequence[int]]) -> Floats:
        ends = np.cumsum([len(ids) for ids in texts])
        spans = [slice(end - len(ids), end) for ids, end in zip(texts, ends.tolist(), strict=True)]
        ids = np.concatenate([np.asarray(text, np.intp) for text in texts])
        positions = np.concatenate([np.arange(len(text)) for text in texts])
        x = _normalise(self._words[ids] + self._positions[positions], self._norm, self._epsilon)
        for layer in self._layers:
            x = self._block(x, layer, spans)
        pooled = np.stack([_pool(x[span], self._shape) for span in spans])
        unit: Floats = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return unit

    def _block(self, x: Floats, layer: _Layer, spans: Sequence[slice]) -> Floats:
        qkv = _linear(x, layer.qkv)
        mixed = np.empty_like(x)
        for span in spans:
            mixed[span] = _attend(qkv[span], self._shape.heads)
        x = _normalise(_linear(mixed, layer.attended) + x, layer.attended_norm, self._epsilon)
        wide = gelu(_linear(x, layer.wide))
        return _normalise(_linear(wide, layer.narrow) + x, layer.narrow_norm, self._epsilon)


def packable(lengths: Sequence[int]) -> int:
    """How many of these texts, from the first on, share a pass: at least one, at most PACKED_TOKENS tokens in all."""
    total = 0
    for position, length in enumerate(lengths):
        total += length
        if total > PACKED_TOKENS and position > 0:
            return position
    return len(lengths)


def _pool(x: Floats, shape: Shape) -> Floats:
    pooled: Floats = x[0] if shape.pooling == "cls" else x.mean(axis=0)
    return pooled


def _attend(qkv: Floats, heads: int) -> Floats:
    """Scaled dot-product attention within one text; queries, keys and values are side by side."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = qkv.reshape(tokens, 3, heads, width // heads).transpose(1, 2, 0, 3)
    scores: Floats = (q @ k.transpose(0, 2, 1)) * np.float32(1 / math.sqrt(width // heads))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = (scores @ v).transpose(1, 0, 2).reshape(tokens, width)
    return mixed


def gelu(x: Floats) -> Floats:
    """x/2 * (1 + erf(x/sqrt 2)), in place; a few rows at a time, which stay in the cache."""
    scratch = np.empty((3, min(GELU_ROWS, len(x)), x.shape[1]), np.float32)
    for first in range(0, len(x), GELU_ROWS):
        rows = x[first : first + GELU_ROWS]
        _gelu_rows(rows, *scratch[:, : len(rows)])
    return x


def _gelu_rows(x: Floats, z: Floats, t: Floats, tail: Floats) -> None:
    """erf(u) = 1 - (a1 t + ... + a5 t^5) exp(-u^2) with t = 1 / (1 + 0.3275911 u), for u = |x|/sqrt 2.

    With T for the subtrahend, gelu(x) = max(x, 0) - |x| T/2, whatever the sign of x.
    """
    np.abs(x, out=z)
    np.multiply(z, np.float32(0.3275911 * math.sqrt(0.5)), out=t)
    t += np.float32(1)
    np.reciprocal(t, out=t)
    np.multiply(t, np.float32(1.061405429), out=tail)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= t
    tail *= z
    z *= z
    z *= np.float32(-0.5)
    tail *= np.exp(z, out=z)
    tail *= np.float32(0.5)
    np.maximum(x, np.float32(0), out=x)
    x -= tail


def _linear(x: Floats, weights: tuple[Floats, Floats]) -> Floats:
    y: Floats = x @ weights[0]
    y += weights[1]
    return y


def _normalise(x: Floats, weights: tuple[Floats, Floats], epsilon: np.float32) -> Floats:
    """Layer normalisation."""
    x -= x.mean(axis=-1, keepdims=True)
    x /= np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[-1]) + epsilon)
    x *= weights[0]
    x += weights[1]
    return x


def _layer(tensors: dict[str, Floats], prefix: str) -> _Layer:
    parts = [_linear_pair(tensors, f"{prefix}.attention.self.{name}") for name in ("query", "key", "value")]
    return _Layer(
        qkv=(np.hstack([w for w, _ in parts]), np.hstack([b for _, b in parts])),
        attended=_linear_pair(tensors, f"{prefix}.attention.output.dense"),
        attended_norm=_pair(tensors, f"{prefix}.attention.output.LayerNorm"),
        wide=_linear_pair(tensors, f"{prefix}.intermediate.dense"),
        narrow=_linear_pair(tensors, f"{prefix}.output.dense"),
        narrow_norm=_pair(tensors, f"{prefix}.output.LayerNorm"),
    )


def _pair(tensors: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def _linear_pair(tensors: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    """A linear layer, transposed: files hold (out, in), and BLAS is a quarter faster on (in, out) with few rows."""
    weight, bias = _pair(tensors, name)
    return np.ascontiguousarray(weight.T), bias


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library has no narrower one
        raise ModelUnusable(f"EMBED_MODEL_PATH: {folder / 'tokenizer.json'} cannot be used: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _fingerprint(tensors: dict[str, Floats], shape: Shape) -> str:
    """Identifies the model by its biases and norms: they are small, and any training changes them all.

    The shape is included where it differs from all-MiniLM-L6-v2's, since it changes vectors as well.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if tensors[name].ndim == 1:
            digest.update(name.encode())
            digest.update(tensors[name].tobytes())
    if shape != USUAL:
        digest.update(repr(shape).encode())
    return digest.hexdigest()[:16]
