"""A router of several processes (ROUTER_PROCESSES), before workers of this test bed and an embedded Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.cluster.processes import NOTHING, Process, StandError, free_ports, get, until_ready
from loadtests.cluster.stand import HOST, NO_RETRIEVAL, Shape, service, stand
from services.cli.valkey import EmbeddedValkey

WITHIN_S = 120.0
LOOK_EVERY_S = 0.05
REPLACED = "all router processes have been replaced"


@dataclass
class Several:
    """The running router. `log` is that of all its processes."""

    parent: Process
    url: str
    metrics_url: str
    folder: Path

    def state(self) -> list[dict[str, Any]]:
        """Of each process, by /admin/state."""
        found: list[dict[str, Any]] = json.loads(get(f"{self.metrics_url}/admin/state"))["processes"]
        return found

    def pids(self) -> list[int]:
        return [one["pid"] for one in self.state()]

    def all_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return all(one["state"] == "ready" for one in self.state())
        return False

    def page(self) -> str:
        """The joined metrics."""
        return get(f"{self.metrics_url}/metrics").decode()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.parent.pid, number)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log so far with this event."""
        lines = self.parent.log.read_text(encoding="utf-8", errors="replace").splitlines()
        found = (json.loads(line) for line in lines if line.startswith('{"time"') and line.endswith("}"))
        return [line for line in found if line["event"] == event]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises StandError if the condition does not come true in WITHIN_S seconds, or the parent ends."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not await asyncio.to_thread(condition):
                    self.parent.check()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise StandError(f"not in {WITHIN_S:g} s: {what}; its last words:\n{self.parent.last_words()}") from None

    async def replace_all(self) -> None:
        """Replace the processes, one after the other (SIGUSR2). Raises StandError."""
        before = len(self.logged(REPLACED))
        self.signal(signal.SIGUSR2)
        await self.until(lambda: len(self.logged(REPLACED)) > before, REPLACED)


@asynccontextmanager
async def several(shape: Shape, processes: int = 2, settings: Mapping[str, str] = NOTHING) -> AsyncIterator[Several]:
    """Ready when all processes are."""
    async with stand(shape, (), router=False) as made:
        port, metrics_port, valkey_port = free_ports(3)
        valkey = EmbeddedValkey(made.folder / "valkey", valkey_port, log=made.folder / "valkey.log")
        valkey.start()
        chosen = {
            "ROUTER_PROCESSES": str(processes), "EXCHANGE_URL": valkey.url, "ROUTER_NAME": "here",
            "WORKERS": ",".join(worker.url for worker in made.workers), "RETRIEVAL_URL": NO_RETRIEVAL, **settings,
        }  # fmt: skip
        server = service("router", "services.router", "router", (port, metrics_port), chosen, made.folder)
        found = Several(server.process, server.url, f"http://{HOST}:{metrics_port}", made.folder)
        server.process.start()
        try:
            await until_ready(server.process, f"{server.url}/health/ready")
            await found.until(found.all_ready, "all processes ready")
            yield found
        finally:
            await server.process.stop()
            valkey.stop()
