"""Which model, on what, and how large: plain values that can cross a process border. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

TINY = "tiny"  # the model that this project makes itself: see `tiny`


@dataclass(frozen=True, slots=True)
class TorchSpec:
    """Everything `loading.load` needs. 0 and "auto" mean: chosen by what the model and the device allow."""

    model_id: str = TINY
    """`tiny`, a folder with a model, or a name on the hub."""
    revision: str = "main"
    cache_dir: str = ""
    """Where downloads and the tiny model are kept; "" is ~/.cache/weir/models."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 8
    kv_tokens: int = 0
    context_tokens: int = 0
    prefill_chunk_tokens: int = 0
    threads: int = 1
    seed: int = 0
    """Of the seeds drawn for requests that bring none."""
    warm_up: bool = True
    """Measure a step before the first request; without it an automatic chunk is a guess."""

    def __post_init__(self) -> None:
        if self.slots < 1 or self.threads < 1:
            raise ValueError(f"slots and threads must be at least 1, got {self.slots} and {self.threads}")
        if min(self.kv_tokens, self.context_tokens, self.prefill_chunk_tokens) < 0:
            raise ValueError("kv_tokens, context_tokens and prefill_chunk_tokens must not be negative")
