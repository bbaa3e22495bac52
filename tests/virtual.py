"""Tests in virtual time: an hour of traffic in milliseconds, servers and clients included, and no flaky waits.

    async def main() -> None:
        async with running_here(app.build(settings)) as process: ...

    run(main)

The loop is `loadtests.cluster.loop.SimLoop`: one process, whose connections to 127.0.0.1 are joined in memory, and
whose clock begins at 0. Nothing is asked of the kernel, and nothing takes time but what the callbacks take: a fixed
sleep and a patient wait cost no more than what happens meanwhile. `bind` answers for the loop that runs, so the same
test can be run on a loop of the kernel's.

`SEED=7` in the environment plays the same tests with other chances: how long a piece is that a read returns, and which
one is chosen among equals. Without it every run is the same run.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, TypeVar, cast

from loadtests.cluster.loop import SimLoop, Simulation
from services.runtime.serve import Process, listening_socket, running

T = TypeVar("T")

SEED = os.environ.get("SEED", "")
CLIENT_TIMEOUT_S = 600.0
"""Virtual seconds after which a test that is given as a function has failed: it hangs."""
SHORT_READS = 0.1
"""The share of reads that return only a part, where a seed is given."""


def new_simulation() -> Simulation:
    """One whose clock says 0, with the chances of `SEED`."""
    simulation = Simulation(SEED)
    simulation.now = 0.0
    simulation.network.short_reads = SHORT_READS if SEED else 0.0
    return simulation


def new_loop() -> SimLoop:
    """The loop of the only process of its simulation. For `asyncio.Runner`."""
    return SimLoop(new_simulation())


def run(
    main: Coroutine[Any, Any, T] | Callable[[], Awaitable[T]],
    loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
) -> T:
    """Run a test to its end, in virtual time unless another loop is given.

    Raises Deadlock where nothing can happen any more. A function is given `PATIENCE_S`, since among services something
    happens for ever; a coroutine may take as long as it likes.
    """
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main if isinstance(main, Coroutine) else _bounded(main))


async def _bounded(main: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(CLIENT_TIMEOUT_S):
        return await main()


def stand_still(seconds: float) -> None:
    """The process gets no processor for so long: whatever was due meanwhile is late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), f"{loop!r} has no virtual clock"
    loop.simulation.now += seconds


def bind(host: str, port: int, variable: str = "a port") -> socket.socket:
    """A listening socket of the loop that runs, for `services.runtime.serve.running`. Port 0 means any free one."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        return cast(socket.socket, loop.bind(host, port, variable))
    return listening_socket(host, port, variable)


def running_here(process: Process, leaving: asyncio.Event | None = None) -> AbstractAsyncContextManager[Process]:
    """Serve where this loop's clients are: in its network, or on sockets of the kernel where it has none."""
    return running(process, leaving, bind=bind)


def chance_here() -> Random:
    """Chance for a part of the test: the world's, so that the seed decides it."""
    loop = asyncio.get_running_loop()
    return Random(loop.simulation.rng.random()) if isinstance(loop, SimLoop) else Random()
