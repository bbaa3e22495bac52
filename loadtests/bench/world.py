"""How many requests a second of one core the world plays: all of HTTP, all services, faults and the judge included.

Processor time of the thread that plays, not the clock's. A request is one try of a client, answered or refused.
"""

from __future__ import annotations

import asyncio
import time

from loadtests.report.figure import Figure
from loadtests.world.play import play

SEEDS_PER_S = 3
"""About as many take a second of what `--seconds` asks for, on the machine of the results."""
SIZE = 1000
TARGET = 3000


async def measure(seconds: float) -> list[Figure]:
    """In a thread of its own, which has no event loop yet."""
    return [await asyncio.to_thread(_mixed, max(1, round(SEEDS_PER_S * seconds)))]


def _mixed(seeds: int) -> Figure:
    play(0, size=100)  # imports, caches
    began = time.thread_time()
    results = [play(seed, size=SIZE) for seed in range(1, seeds + 1)]
    spent_s = time.thread_time() - began
    requests = sum(result.requests for result in results)
    refused = sum(result.counts["refused"] for result in results)
    broken = sum(bool(result.violations) for result in results)
    note = (
        f"{requests:,} requests of {seeds} seeds in {spent_s:.1f} s; {refused / requests:.0%} refused, {broken} broken"
    )
    return Figure("the whole system, mixed seeds", requests / spent_s, "requests/s", TARGET, note=note)
