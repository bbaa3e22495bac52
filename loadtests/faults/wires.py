"""A fault proxy before a part, as a process, controlled through its control port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from loadtests.cluster.processes import LOOK_EVERY_S, READY_WITHIN_S, Process, StandError, python
from loadtests.paths import ROOT

HOST = "127.0.0.1"
HEALTHY = "healthy"
REPLY_WITHIN_S = 10.0
CONNECTIONS = 2048


class Wire:
    """A proxy from its own port to `to_port`."""

    def __init__(self, name: str, to_port: int, ports: Iterator[int], folder: Path) -> None:
        self.name = name
        self.port, self._control = next(ports), next(ports)
        command = python(
            "-m", "loadtests.faults.proxy", "--listen", str(self.port), "--to", f"{HOST}:{to_port}",
            "--control", str(self._control), "--connections", str(CONNECTIONS),
        )  # fmt: skip
        self.process = Process(f"wire-{name}", command, {"PYTHONPATH": str(ROOT)}, folder)

    async def ready(self) -> None:
        """Wait for the control port. Raises StandError if the process ends first."""
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_WITHIN_S
        while loop.time() < end:
            self.process.check()
            try:
                await self.become(HEALTHY)
                return
            except OSError:
                await asyncio.sleep(LOOK_EVERY_S)
        raise StandError(f"{self.process.name} was not ready within {READY_WITHIN_S:g} s")

    async def become(self, line: str) -> None:
        """Send a line of `faults.proxy.fault`. Raises StandError if it is rejected, OSError if the port is closed."""
        async with asyncio.timeout(REPLY_WITHIN_S):
            reader, writer = await asyncio.open_connection(HOST, self._control)
            try:
                writer.write(f"{line}\n".encode())
                reply = await reader.readline()
            finally:
                writer.close()
        if not reply.startswith(b"ok "):
            raise StandError(f"{self.process.name} answered {reply!r} to {line!r}")
