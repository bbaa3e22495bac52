"""A running stack that the user names: its router, its workers, and their shape."""

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
    """A process that this program did not start: known by its id, and never stopped."""

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
        """Does nothing: it belongs to the user."""


async def running(router_url: str, worker_urls: Sequence[str], folder: Path) -> Stand:
    """The running stack; metrics listen 1000 above each port. Raises StandError if a part does not answer."""
    shape = await asyncio.to_thread(_announced, worker_urls)
    workers = [_server(f"worker-{number}", url, folder) for number, url in enumerate(worker_urls)]
    return Stand(shape, folder, workers, _server("router", router_url, folder))


def _announced(worker_urls: Sequence[str]) -> Shape:
    """The shape that the workers report. They are assumed to be equal."""
    status = [json.loads(get(f"{url}/status")) for url in worker_urls]
    step_ms = float(status[0].get("full_step_ms") or status[0]["step_ms"])
    return Shape(len(status), int(status[0]["slots"]), step_ms)


def _server(name: str, url: str, folder: Path) -> Server:
    parts = urlsplit(url)
    metrics_url = f"http://{parts.hostname}:{(parts.port or 80) + METRICS_OFFSET}/metrics"
    return Server(Attached(name, _listening(parts.port or 80), folder), url, metrics_url)


def _listening(port: int) -> int:
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            return int(connection.pid)
    raise StandError(f"no process of this machine is visible that listens on port {port}")
