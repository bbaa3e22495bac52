"""Services and their clients in virtual time, joined by the network in memory: what nearly every test of them wants.

    async def main() -> None:
        async with running_here(app.build(settings)) as process: ...

    run(main)

Nothing is asked of the kernel, and nothing takes time but what the callbacks take: a fixed sleep and a patient wait
cost no more than what happens meanwhile. `SEED=7` in the environment plays the same tests with other chances: how long
a piece is that a read returns, and who is chosen among equals. Without it every run is the same run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import TypeVar

from loadtests.cluster.loop import SimLoop, Simulation
from services.runtime.serve import Process, running
from tests.virtual_time import bind

T = TypeVar("T")

SEED = os.environ.get("SEED", "")
PATIENCE_S = 600.0
"""Virtual seconds after which a test has failed: it hangs."""
SHORT_READS = 0.1
"""The share of reads that return only a part, where a seed is given."""


def virtual_loop() -> SimLoop:
    """An event loop of its own world, with the chances of `SEED`. For `asyncio.Runner`."""
    simulation = Simulation(SEED)
    simulation.network.short_reads = SHORT_READS if SEED else 0.0
    return SimLoop(simulation)


def run(main: Callable[[], Awaitable[T]], loop: Callable[[], asyncio.AbstractEventLoop] = virtual_loop) -> T:
    """Run a test to its end, in virtual time unless another loop is given. Fails rather than hangs."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


def running_here(process: Process, leaving: asyncio.Event | None = None) -> AbstractAsyncContextManager[Process]:
    """Serve where this loop's clients are: in its network, or on sockets of the kernel where it has none."""
    return running(process, leaving, bind=bind)


def chance_here() -> Random:
    """Chance for a part of the test: the world's, so that the seed decides it."""
    loop = asyncio.get_running_loop()
    return Random(loop.simulation.rng.random()) if isinstance(loop, SimLoop) else Random()
