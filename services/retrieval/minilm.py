"""A sentence encoder: all-MiniLM-L6-v2, a six-layer BERT of 384 dimensions, computed by onnxruntime.

    tokens -> word + position + type -> encoder.py -> unit vectors

`modelfolder.py` says which other models fit. Vectors are exact to 1e-6 against float64 (tested). So the fingerprint
names the weights alone: vectors that another version of the encoder stored stay valid. Weights are memory-mapped, and
of the word table, half of the 90 MB, only rows that occur in texts are read.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
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
PACKED_TOKENS = 128  # max tokens in a pass, unless one text alone has more: attention compares all of them


class MiniLM:
    """The model: texts in, unit vectors out. One thread may tokenize while another embeds, but no more than that."""

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        """Raises ModelUnusable, also for a bundled model that is not the published one."""
        from services.retrieval.encoder import Encoder  # 30 MB of libraries, which only the model's process needs

        bundled.check(folder)
        self._shape = shape_of(folder)
        self.name = name_of(folder)
        self._tokenizer = _tokenizer(folder)
        self.tokenizer = tokenizer_digest(folder)
        mapped = map_file(folder / "model.safetensors")
        tensors = read_safetensors(mapped)
        self.fingerprint = _fingerprint(tensors, self._shape)
        try:
            self._words = tensors["embeddings.word_embeddings.weight"]
            self._positions = self._offsets(tensors)
            self._encoder = Encoder(tensors, self._shape, threads=threads)
        except KeyError as error:
            raise ModelUnusable(f"EMBED_MODEL_PATH: the weights in {folder} lack {error.args[0]}") from None
        mapped.madvise(mmap.MADV_DONTNEED)  # the encoder has a copy of its matrices: release their pages

    def _offsets(self, tensors: dict[str, Floats]) -> Floats:
        """What is added to a word for its position; all tokens are of the first type."""
        types = tensors["embeddings.token_type_embeddings.weight"]
        offsets: Floats = tensors["embeddings.position_embeddings.weight"][: self._shape.max_tokens] + types[0]
        return offsets

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
        ids = np.concatenate([np.asarray(text, np.intp) for text in texts])
        positions = np.concatenate([np.arange(len(text)) for text in texts])
        return self._encoder.run(self._words[ids] + self._positions[positions], [len(text) for text in texts])


def packable(lengths: Sequence[int]) -> int:
    """How many of these texts, from the first on, share a pass: at least one, at most PACKED_TOKENS tokens in all."""
    total = 0
    for position, length in enumerate(lengths):
        total += length
        if total > PACKED_TOKENS and position > 0:
            return position
    return len(lengths)


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
