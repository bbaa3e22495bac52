"""A router of several processes before a worker and a store, as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtests.cluster.processes import Process, free_ports, get, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL, Shape, service, stand
from services.cli.valkey import EmbeddedValkey

WITHIN_S = 60.0


@dataclass
class Several:
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
        return get(f"{self.metrics_url}/metrics").decode()

    def signal(self, number: int) -> None:
        os.kill(self.parent.pid, number)

    def events(self) -> list[dict[str, Any]]:
        """The log's lines so far."""
        lines = self.parent.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.events() if line["event"] == event]


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)
    assert what


@asynccontextmanager
async def several(processes: int = 2, **settings: str) -> AsyncIterator[Several]:
    """Ready when all processes are."""
    async with stand(Shape(workers=1, slots=32, step_ms=5.0, answer_tokens=4), (), router=False) as made:
        port, metrics_port, valkey_port = free_ports(3)
        valkey = EmbeddedValkey(made.folder / "valkey", valkey_port, log=made.folder / "valkey.log")
        valkey.start()
        chosen = {
            "ROUTER_PROCESSES": str(processes), "EXCHANGE_URL": valkey.url, "ROUTER_NAME": "here",
            "WORKERS": ",".join(worker.url for worker in made.workers), "RETRIEVAL_URL": NO_RETRIEVAL, **settings,
        }  # fmt: skip
        server = service("router", "services.router", "router", (port, metrics_port), chosen, made.folder)
        found = Several(server.process, server.url, f"http://127.0.0.1:{metrics_port}", made.folder)
        server.process.start()
        try:
            await until_ready(server.process, f"{server.url}/health/ready")
            await until(found.all_ready, "all ready")
            yield found
        finally:
            await server.process.stop()
            valkey.stop()


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
