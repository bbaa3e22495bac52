"""The engines that must keep the contract.

To add an engine, write a function that opens it and name it in `ENGINES`. It is called once a session, so it may load
a model, and may skip with a reason where the engine cannot be had; what it returns makes an engine of given sizes, and
is called by every test, so it should be quick. Nothing else in this folder knows an engine by name.

An engine may have less memory, fewer slots or a shorter context than it was asked for, and says so itself; no step may
read more than the chunk that was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from services.worker.engine import Engine
from services.worker.engines.simulated import LatencyModel, SimulatedEngine


@dataclass(frozen=True)
class Sizes:
    """Of an engine. Small, so that every bound is met within a few steps."""

    slots: int = 3
    kv_tokens: int = 768
    context_tokens: int = 384
    prefill_chunk_tokens: int = 8


Make = Callable[[Sizes], Engine]


def simulated() -> Make:
    def make(sizes: Sizes) -> Engine:
        return SimulatedEngine(
            model="m",
            slots=sizes.slots,
            kv_tokens=sizes.kv_tokens,
            context_tokens=sizes.context_tokens,
            prefill_chunk_tokens=sizes.prefill_chunk_tokens,
            latency=LatencyModel(),
            chance=random.Random(1),
        )

    return make


ENGINES: dict[str, Callable[[], Make]] = {"simulated": simulated}
