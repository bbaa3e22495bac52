"""The embedded stack, as `make up` starts it, on ports that nobody else has; or one that runs already.

It is the whole platform (database, cache, retrieval, governor, two workers, router), with a tenants file of ours, so
that the tenants of a scenario are known by their keys and only those who may be cut are. The workers have a known
service time: a token every 10 ms in each of 8 slots, with 10 % jitter.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import psutil

from loadtests.cluster.processes import Process, StandError, get, python
from loadtests.cluster.stand import Server, Shape, Stand, key_of
from loadtests.paths import ROOT
from services.cli.config import GOVERNOR_METRICS_OFFSET, METRICS_OFFSET
from services.cli.ports import is_free

WHOLE = ("anna", "ben", "chloe", "light", "heavy", "tight", "loose", "small", "big")
CUTTABLE = ("dora", "emil", "flora")  # whose answers may be made shorter rather than refused
SHAPE = Shape()
READY_WITHIN_S = 240.0  # a slow machine makes a database first
STOP_WITHIN_S = 40.0
LOOK_EVERY_S = 0.1
FIRST_PORTS = range(20_000, 30_000)  # below those that the kernel lends, metrics included
TRIES = 200


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


@asynccontextmanager
async def embedded() -> AsyncIterator[Stand]:
    """`weir up` on free ports, with a folder of its own that goes with it."""
    with tempfile.TemporaryDirectory(prefix="weir-report-") as name:
        folder = Path(name)
        ports = free_ports()
        process = Process("weir-up", python("-m", "services.cli", "up"), settings(folder, ports), folder)
        process.start()
        try:
            await _until_published(process, folder / "data" / "stack.json")
            router, *workers = (f"http://127.0.0.1:{ports[each]}" for each in ("ROUTER_PORT", "WORKER_PORT", "SECOND"))
            yield await running(router, workers, folder)
        finally:
            await _stop(process)


async def running(router_url: str, worker_urls: Sequence[str], folder: Path) -> Stand:
    """A stack that runs: its metrics listen 1000 above. Raises StandError if a part of it does not answer."""
    shape = await asyncio.to_thread(_announced, worker_urls)
    workers = [_server(f"worker-{number}", url, folder) for number, url in enumerate(worker_urls)]
    return Stand(shape, folder, workers, _server("router", router_url, folder))


def settings(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """What the stack is told: the shape of its workers, our tenants, where to listen. All else is the default."""
    tenants = folder / "tenants.yaml"
    tenants.write_text(tenants_yaml(), encoding="utf-8")
    return {
        "PYTHONPATH": str(ROOT),
        "DATA_DIR": str(folder / "data"),
        "TENANTS_FILE": str(tenants),
        "SEED_CORPUS": "none",
        "INTERNAL_TOKEN": "none",  # HAProxy's clients ask the workers directly, and a stand is for this machine alone
        "WORKERS_COUNT": str(SHAPE.workers),
        "MAX_BATCH_SIZE": str(SHAPE.slots),
        "SIM_STEP_MS": f"{SHAPE.step_ms:g}",
        "SIM_STEP_PER_SEQUENCE_MS": "0",
        "SIM_PREFILL_MS_PER_TOKEN": "0",
        "SIM_JITTER": f"{SHAPE.jitter:g}",
        **{name: str(port) for name, port in ports.items() if name != "SECOND"},
    }


def tenants_yaml() -> str:
    """The tenants file: equal weights; a few may be cut."""
    lines = ["tenants:"]
    for tenant in (*WHOLE, *CUTTABLE):
        digest = hashlib.sha256(key_of(tenant).encode("ascii")).hexdigest()
        cut = ", degrade: true" if tenant in CUTTABLE else ""
        lines.append(f'  - {{id: {tenant}, keys: ["sha256:{digest}"]{cut}}}')
    return "\n".join(lines) + "\n"


def free_ports() -> dict[str, int]:
    """A setting and its port for each part, all of them free now, and those of their metrics."""
    for _ in range(TRIES):
        first = random.choice(FIRST_PORTS)
        ports = {
            "ROUTER_PORT": first,
            "RETRIEVAL_PORT": first + 1,
            "GOVERNOR_PORT": first + 2,
            "WORKER_PORT": first + 3,
            "SECOND": first + 4,  # the second worker's, which follows from the first's
            "EMBEDDED_POSTGRES_PORT": first + 5,
            "EMBEDDED_REDIS_PORT": first + 6,
        }
        metrics = [port + METRICS_OFFSET for port in list(ports.values())[:5]]
        if all(is_free("127.0.0.1", port) for port in (*ports.values(), *metrics, first + 2 + GOVERNOR_METRICS_OFFSET)):
            return ports
    raise StandError("no free ports were found")


async def _until_published(process: Process, note: Path) -> None:
    """The stack writes where it is once all of it is ready."""
    end = monotonic() + READY_WITHIN_S
    while not note.exists():  # noqa: ASYNC240  one look at a file of this machine
        process.check()
        if monotonic() > end:
            raise StandError(f"the stack was not ready within {READY_WITHIN_S:g} s:\n{process.last_words()}")
        await asyncio.sleep(LOOK_EVERY_S)


async def _stop(process: Process) -> None:
    """It stops its parts in order, and they finish what runs; a process that does not is killed with all of them."""
    if process.running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    end = monotonic() + STOP_WITHIN_S
    while process.running and monotonic() < end:  # noqa: ASYNC110  another process's end is no event of ours
        await asyncio.sleep(LOOK_EVERY_S)
    process.kill()


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
