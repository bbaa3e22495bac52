"""What a look-up in the semantic cache costs, by how many questions of a tenant are kept."""

from __future__ import annotations

import statistics
import time

import numpy as np

from services.contracts.search import Passage
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.reach import Reach
from services.retrieval.semantic import Semantic

SIZES = (1_000, 10_000)
LOOKUPS = 300
REACH = Reach(1.0, 5)
PLENTY_BYTES = 1 << 31


def vectors(count: int) -> Floats:
    """Unit vectors in random directions."""
    drawn: Floats = np.random.default_rng(1).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return drawn


def lookup_us(entries: int) -> float:
    """Microseconds of processor time of a look-up, the median."""
    cache = Semantic(threshold=0.1, stale_s=60.0, tenant_entries=entries, most_bytes=PLENTY_BYTES, clock=lambda: 0.0)
    results = [Passage("guide.md#0", "guide.md", 1, "text", 0.5)]
    kept = vectors(entries)
    for number, vector in enumerate(kept):
        cache.keep(
            "demo", version=1, params="", query=str(number), vector=vector, results=results, reach=REACH, ttl_s=60.0
        )
    took = []
    for vector in kept[:LOOKUPS]:
        began = time.thread_time_ns()
        found = cache.nearest("demo", version=1, params="", vector=vector, reach=REACH)
        took.append((time.thread_time_ns() - began) / 1000)
        assert found is not None
    return statistics.median(took)
