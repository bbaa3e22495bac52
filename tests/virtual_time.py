"""The virtual clock for tests: an hour of traffic in milliseconds, servers and clients included, and no flaky waits.

    run(main())

The loop is `loadtests.cluster.loop.SimLoop`: one process, whose connections to 127.0.0.1 are joined in memory. What
asks `asyncio.get_running_loop().time()` or sleeps on the loop sees virtual seconds, from 0. A listening socket comes
from `bind`, which answers for the loop that runs: in memory here, of the kernel on any other loop. So the same test can
be run on both.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from loadtests.cluster.loop import SimLoop, Simulation
from services.runtime.serve import listening_socket

T = TypeVar("T")


def from_zero(seed: int | str = 0) -> Simulation:
    """A simulation whose clock says 0. The seed decides what is left to chance."""
    simulation = Simulation(seed)
    simulation.now = 0.0
    return simulation


def new_loop(seed: int | str = 0) -> SimLoop:
    """The loop of the only process of its simulation."""
    return SimLoop(from_zero(seed))


def run(main: Coroutine[Any, Any, T], seed: int | str = 0) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: new_loop(seed)) as runner:
        return runner.run(main)


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
