"""A model's weights as arrays, from a safetensors file: eight bytes of length, a JSON header, raw numbers.

The file is memory-mapped, so that unused weights are never read. Half precision is widened to float32 without loss.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.retrieval.modelfolder import ModelUnusable

Floats = NDArray[np.float32]

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
PREFIX = "bert."  # before each name if the encoder was saved as part of a larger model


def map_file(path: Path) -> mmap.mmap:
    """The file, mapped. Raises ModelUnusable."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"EMBED_MODEL_PATH: {path} cannot be read: {error}") from None


def read_safetensors(mapped: mmap.mmap) -> dict[str, Floats]:
    """The tensors of the file by name. Raises ModelUnusable."""
    begin = 8 + int.from_bytes(mapped[:8], "little")
    try:
        header = json.loads(mapped[8:begin])
        entries = {name: entry for name, entry in header.items() if entry.get("dtype") in WIDTHS}
        return {name.removeprefix(PREFIX): _tensor(mapped, begin, name, entry) for name, entry in entries.items()}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ModelUnusable(f"EMBED_MODEL_PATH: the weights are damaged: {error}") from None


def _tensor(mapped: mmap.mmap, begin: int, name: str, entry: dict[str, Any]) -> Floats:
    shape, (first, last), kind = entry["shape"], entry["data_offsets"], entry["dtype"]
    count = math.prod(shape)
    if count * WIDTHS[kind] != last - first or begin + last > len(mapped):
        raise ModelUnusable(f"EMBED_MODEL_PATH: the weights are damaged: {name} is not as long as its header says")
    return _numbers(mapped, kind, count, begin + first).reshape(shape)


def _numbers(mapped: mmap.mmap, kind: str, count: int, offset: int) -> Floats:
    if kind == "F32":
        return np.frombuffer(mapped, np.float32, count=count, offset=offset)
    if kind == "F16":
        return np.frombuffer(mapped, np.float16, count=count, offset=offset).astype(np.float32)
    upper = np.frombuffer(mapped, np.uint16, count=count, offset=offset).astype(np.uint32)
    return (upper << np.uint32(16)).view(np.float32)  # the upper half of a float32
