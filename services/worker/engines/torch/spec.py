"""The description of a torch engine, to be sent to its process. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

TINY = "tiny"  # the model that `tiny` builds


@dataclass(frozen=True, slots=True)
class TorchSpec:
    """The arguments of `loading.load`. 0 and "auto": chosen from the model and the device. Raises ValueError."""

    model_id: str = TINY
    """`tiny`, a model's folder, or a name on the hub."""
    revision: str = "main"
    cache_dir: str = ""
    """The folder of downloads and of the tiny model; "" is ~/.cache/weir/models."""
    device: str = "auto"
    dtype: str = "auto"
    slots: int = 8
    kv_tokens: int = 0
    context_tokens: int = 0
    prefill_chunk_tokens: int = 0
    threads: int = 1
    seed: int = 0
    """Seeds the generator of seeds for requests without one."""
    warm_up: bool = True
    """Measure steps before the first request; without it an automatic chunk has a fixed size."""

    def __post_init__(self) -> None:
        if self.slots < 1 or self.threads < 1:
            raise ValueError(f"slots and threads must be at least 1, got {self.slots} and {self.threads}")
        if min(self.kv_tokens, self.context_tokens, self.prefill_chunk_tokens) < 0:
            raise ValueError("kv_tokens, context_tokens and prefill_chunk_tokens must not be negative")
