"""A stack that runs already, as the user names it: its router, its workers, and what those say of themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from loadtests.cluster.processes import Process, StandError, get
from loadtests.cluster.stand import Server, Shape, Stand
from services.cli.config import METRICS_OFFSET


class Attached(Process):
    """A process of the stack that we did not start: known by its id, never stopped by us."""

    def __init__(self, name: str, pid: int, folder: Path) -> None:
        super().__init__(name, (), {}, folder)
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return psutil.pid_exists(self._pid)

    async def stop(self) -> None:
        """Whoever started it stops it."""


async def running(router_url: str, worker_urls: Sequence[str], folder: Path) -> Stand:
    """A stack that runs: its metrics listen 1000 above. Raises StandError if a part of it does not answer."""
    shape = await asyncio.to_thread(_announced, worker_urls)
    workers = [_server(f"worker-{number}", url, folder) for number, url in enumerate(worker_urls)]
    return Stand(shape, folder, workers, _server("router", router_url, folder))


def _announced(worker_urls: Sequence[str]) -> Shape:
    """The workers' own word for their slots and their step. They are taken to be equal."""
    told = [json.loads(get(f"{url}/status")) for url in worker_urls]
    step_ms = float(told[0].get("full_step_ms") or told[0]["step_ms"])
    return Shape(len(told), int(told[0]["slots"]), step_ms)


def _server(name: str, url: str, folder: Path) -> Server:
    parts = urlsplit(url)
    metrics_url = f"http://{parts.hostname}:{(parts.port or 80) + METRICS_OFFSET}/metrics"
    return Server(Attached(name, _listening(parts.port or 80), folder), url, metrics_url)


def _listening(port: int) -> int:
    """The id of the process that listens there. Raises StandError where that cannot be seen."""
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            return int(connection.pid)
    raise StandError(f"no process of this machine's is seen to listen on port {port}")
