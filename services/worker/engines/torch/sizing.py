"""The memory of a torch engine: pages, tokens per step, context. Arithmetic only.

A page holds `page_tokens` tokens of one sequence. `kv_tokens` needs one more page per slot, because the last page of a
sequence is only partly used:

    sum of ceil(tokens_i / page)  <=  kv_tokens / page + slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from services.worker.engine_executor import EngineUnusable
from services.worker.engines.torch.spec import TorchSpec

PAGE_TOKENS = 16
MAX_CHUNK_TOKENS = {False: 512, True: 2048}  # by whether there is a GPU; bounds the attention mask's size
MEMORY_SHARE = 0.5  # of the memory left after the weights; the rest is for activations and other processes
UNKNOWN_CONTEXT_TOKENS = 4096
GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """The sizes of `PagedBatch` and the engine."""

    kv_tokens: int
    context_tokens: int
    page_tokens: int
    pages: int
    step_tokens: int
    kv_bytes: int
    """Of all pages."""


def size(spec: TorchSpec, config: Any, dtype: torch.dtype, free: int, *, on_gpu: bool) -> MemorySizes:
    """Explicit values are kept or rejected; automatic ones are as large as is useful and fits. Raises EngineUnusable.

    `free` is in bytes. Half of it may be used.
    """
    if getattr(config, "num_attention_heads", None) is None:
        raise EngineUnusable(
            f"MODEL_ID={spec.model_id} cannot be batched continuously: a model of type {config.model_type!r} "
            "has no attention, and its memory no pages."
        )
    context_tokens = _context_tokens(spec, config)
    step_tokens = spec.slots + max(MAX_CHUNK_TOKENS[on_gpu], spec.prefill_chunk_tokens)
    per_token = _bytes_per_token(config, dtype) + step_tokens * dtype.itemsize  # keys, values, mask column
    room = int(free * MEMORY_SHARE) // per_token - spec.slots * PAGE_TOKENS
    kv_tokens = spec.kv_tokens or min(spec.slots * context_tokens, room)
    if kv_tokens > room or kv_tokens < 2 * PAGE_TOKENS:
        raise EngineUnusable(
            f"KV_TOKENS={spec.kv_tokens}: {max(kv_tokens, spec.kv_tokens)} tokens take {per_token / 1024:.0f} KiB each "
            f"and {free / GIB:.1f} GiB are free, of which {MEMORY_SHARE:.0%} may be used. Lower KV_TOKENS or "
            "MAX_BATCH_SIZE, or take a smaller model."
        )
    pages = math.ceil(kv_tokens / PAGE_TOKENS) + spec.slots
    kv_bytes = pages * PAGE_TOKENS * _kv_bytes_per_token(config, dtype)
    return MemorySizes(kv_tokens, min(context_tokens, kv_tokens), PAGE_TOKENS, pages, step_tokens, kv_bytes)


def _context_tokens(spec: TorchSpec, config: Any) -> int:
    own = getattr(config, "max_position_embeddings", None) or UNKNOWN_CONTEXT_TOKENS
    if spec.context_tokens > own:
        raise EngineUnusable(f"MAX_CONTEXT_TOKENS={spec.context_tokens}: the model supports {own} tokens.")
    return int(spec.context_tokens or own)


def _bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of every layer, and those of one layer once more, gathered for attention."""
    heads, width = _heads(config)
    gathered = 2 * (int(config.num_attention_heads) + heads) * width * int(dtype.itemsize)
    return _kv_bytes_per_token(config, dtype) + gathered


def _kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    heads, width = _heads(config)
    return 2 * heads * width * int(dtype.itemsize) * int(config.num_hidden_layers)


def _heads(config: Any) -> tuple[int, int]:
    """(heads of keys and values, width of a head)."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(heads), int(width)
