"""Requests that the world simulates in a second of one core, with all services, HTTP, faults and the judge.

It is processor time of the simulating thread. A request is one attempt of a client, answered or rejected.
"""

from __future__ import annotations

import asyncio
import time

from loadtests.report.figure import Figure
from loadtests.world.play import play

SEEDS_PER_S = 3
"""About as many seeds take one of `--seconds`, on the machine of the results."""
SIZE = 1000
TARGET = 3000


async def measure(seconds: float) -> list[Figure]:
    """Runs in a thread of its own, which has no event loop yet."""
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
