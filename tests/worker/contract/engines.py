"""The engines that must keep the contract.

To add an engine, write a function that opens it, name it in both tables, and have its tests name it: the simulated one
in `conftest.py` beside this, torch in `tests/real/torch/test_contract.py`. It is called once a session, with a folder
of its own, so it may make a model, and may skip with a reason where the engine cannot be had; what it returns makes an
engine of given sizes, and is called by every test, so it should be quick. Nothing else here knows an engine by name.

An engine may have less memory, fewer slots or a shorter context than it was asked for, and says so itself; no step may
read more than the chunk that was asked for.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

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


def simulated(folder: Path) -> Make:
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


def torch(folder: Path) -> Make:
    """The tiny model. An automatic chunk is measured; here it is given, so nothing has to be."""
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    from services.worker.engines.torch import tiny
    from services.worker.engines.torch.loading import load
    from services.worker.engines.torch.spec import TorchSpec

    model = str(tiny.build(folder))
    gc.freeze()  # torch's many objects are here to stay: collecting them at each close would take most of the time

    def make(sizes: Sizes) -> Engine:
        return load(TorchSpec(model_id=model, device="cpu", warm_up=False, **asdict(sizes)))

    return make


ENGINES: dict[str, Callable[[Path], Make]] = {"simulated": simulated, "torch": torch}
EXAMPLES = {"simulated": 100, "torch": 12}
"""How many examples of a property each has the time for."""
