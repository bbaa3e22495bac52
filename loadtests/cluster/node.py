"""One service of a cluster in one process: the production composition, on a host of its own.

A node is started, frozen, killed and started again. `build` is called anew for each start, as a container's entry point
is; what a killed one had in memory is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from loadtests.cluster.loop import SimLoop, Simulation
from services.runtime.log import Log
from services.runtime.serve import Process, running


class Build(Protocol):
    """A composition root: makes the service from its chance and its log."""

    def __call__(self, *, rng: Random, log: Log) -> Process: ...


class Lines:
    """A log's stream: each line goes to `take`, until the node that wrote it is killed."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.muted = False

    def write(self, data: bytes) -> int:
        """One or more whole lines."""
        if not self.muted:
            for line in data.splitlines():
                self._take(line)
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back."""


class Node:
    """A service by name.

    `on_line(name, start, line)` gets each line of its log, `on_error(name, what)` what no task catches.
    """

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        address: str,
        build: Build,
        *,
        seed: str,
        on_line: Callable[[str, int, bytes], None],
        on_error: Callable[[str, str], None],
    ) -> None:
        self.simulation = simulation
        self.name = name
        self.address = address
        self.starts = 0
        self.process: Process | None = None
        self.loop: SimLoop | None = None
        self.on_turn: Callable[[], None] | None = None
        """Called after each turn of its loop: where invariants that hold at every step are looked at."""
        self.on_built: Callable[[Process], None] | None = None
        self._build = build
        self._seed = seed
        self._on_line = on_line
        self._on_error = on_error
        self._lines: Lines | None = None
        self._leaving: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """It was started, and neither killed nor stopped."""
        return self.loop is not None and not self.loop.is_closed()

    @property
    def inside(self) -> Any:
        """The part of the composition that holds the requests; None before it is built."""
        return self.process.inside if self.process is not None else None

    def start(self) -> None:
        """Begin; it listens a moment later."""
        assert not self.up, f"{self.name} runs already"
        self.starts += 1
        loop = self.loop = SimLoop(self.simulation, self.name, self.address)
        loop.set_exception_handler(self._uncaught)
        loop.after_turn = self.on_turn
        self._leaving = None
        self._task = loop.create_task(self._main(loop), name=self.name)

    async def _main(self, loop: SimLoop) -> None:
        start = self.starts
        self._lines = Lines(lambda line: self._on_line(self.name, start, line))
        log = Log(self.name, "INFO", self._lines, clock=loop.unix_time, threaded=False)  # type: ignore[arg-type]
        process = self._build(rng=Random(f"{self._seed} {self.name} {start}"), log=log)
        self._leaving = asyncio.Event()
        if self.on_built is not None:
            self.on_built(process)
        async with running(process, bind=loop.bind):  # type: ignore[arg-type]  # it binds no socket of the kernel
            self.process = process
            await self._leaving.wait()

    def kill(self) -> None:
        """SIGKILL."""
        if self._lines is not None:
            self._lines.muted = True
        self.process = None
        if self.loop is not None:
            self.loop.kill()

    def leave(self) -> bool:
        """SIGTERM. Whether there is a service that can hear it."""
        if not self.up or self._leaving is None or self.loop is None:
            return False
        self.loop.call_soon(self._leaving.set)
        return True

    @property
    def ended(self) -> bool:
        """It has left by itself, or was killed."""
        return not self.up or (self._task is not None and self._task.done())

    async def stop(self, within_s: float) -> list[str]:
        """SIGTERM: drain and end. Returns what is left of it afterwards, which should be nothing.

        For the loop that drives the simulation. Raises TimeoutError where it does not end.
        """
        loop, task = self.loop, self._task
        assert loop is not None, f"{self.name} was never started"
        assert task is not None, f"{self.name} was never started"
        self.leave()
        until = self.simulation.now + within_s
        while not task.done():
            if self.simulation.now > until:
                raise TimeoutError(f"{self.name} has not ended {within_s} s after its SIGTERM")
            await asyncio.sleep(0.05)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
        await asyncio.sleep(0.05)
        left = [f"task {other.get_coro()!r}" for other in asyncio.all_tasks(loop)]
        left += [f"timer {timer!r}" for timer in loop.timers()]
        left += [f"{connection!r}" for connection in self.simulation.network.connections if connection.loop is loop]
        loop.close()
        return left

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._on_error(self.name, f"{context['message']}: {error!r}" if error else context["message"])

    def __repr__(self) -> str:
        return f"<Node {self.name} {'up' if self.up else 'down'}, started {self.starts} times>"
