"""One service of a cluster: the production composition on its own host.

A node can be started, frozen, killed and restarted. Each start calls `build` again; a killed node's memory is lost.
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
    """A composition root: makes the service from a random source and a log."""

    def __call__(self, *, rng: Random, log: Log) -> Process: ...


class Lines:
    """A log stream that passes each line to `take` until its node is killed."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.muted = False

    def write(self, data: bytes) -> int:
        if not self.muted:
            for line in data.splitlines():
                self._take(line)
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered."""


class Node:
    """A named service. `on_line(name, start, line)` gets each log line, `on_error(name, what)` uncaught errors."""

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
        """Called after each turn of its loop, for invariants."""
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
        """Whether it was started and neither killed nor stopped."""
        return self.loop is not None and not self.loop.is_closed()

    @property
    def inside(self) -> Any:
        """The composition's `inside`, which holds the requests; None before it is built."""
        return self.process.inside if self.process is not None else None

    def start(self) -> None:
        """Start; it listens shortly afterwards."""
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
        if self._lines is not None:
            self._lines.muted = True
        self.process = None
        if self.loop is not None:
            self.loop.kill()

    def leave(self) -> bool:
        """SIGTERM. False if no service can receive it."""
        if not self.up or self._leaving is None or self.loop is None:
            return False
        self.loop.call_soon(self._leaving.set)
        return True

    @property
    def ended(self) -> bool:
        """Whether it exited or was killed."""
        return not self.up or (self._task is not None and self._task.done())

    async def stop(self, within_s: float) -> list[str]:
        """SIGTERM, then wait for the end. Returns what is left over, which should be nothing.

        Call it in the loop that drives the simulation. Raises TimeoutError if it does not end.
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
