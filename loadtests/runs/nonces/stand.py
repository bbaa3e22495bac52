"""What runs: workers with the simulated engine, evil ones that are not there yet, and a router before them all."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.cluster.processes import Process, free_ports, get, python
from loadtests.cluster.stand import NO_RETRIEVAL, Server, ready, tenants_yaml
from loadtests.faults.evil.row import BOTH
from loadtests.paths import ROOT

TENANT = "nonces"
MODEL = "weir-sim"
WORKERS = 3
SLOTS = 8
STEP_MS = 8.0
EVIL_SLOTS = 4
SILENCE_S = 1.0


@dataclass
class Stand:
    """`workers` may be killed and frozen; `evil` come and go; the router stays."""

    folder: Path
    router: Server
    workers: list[Server] = field(default_factory=list)
    evil: list[Server] = field(default_factory=list)

    async def stop(self) -> None:
        for server in (self.router, *self.workers, *self.evil):
            await server.process.stop()

    async def inflight(self) -> float:
        """Places that the router says are held, under its cap and at its workers."""
        return await self.read("weir_inflight") + await self.read("weir_worker_inflight")

    async def read(self, metric: str, having: str = "") -> float:
        """A metric of the router's, added up over the series whose labels have this."""
        text = (await asyncio.to_thread(get, self.router.metrics_url)).decode()
        lines = [line for line in text.splitlines() if line.startswith((metric + "{", metric + " ")) and having in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@asynccontextmanager
async def stand(
    *, evil: Sequence[str] = BOTH, workers: int = WORKERS, step_ms: float = STEP_MS, silence_s: float = SILENCE_S
) -> AsyncIterator[Stand]:
    """Start the router and the good workers, and stop everything whatever happens."""
    with tempfile.TemporaryDirectory(prefix="weir-nonces-") as name:
        folder = Path(name)
        ports = iter(free_ports(2 * (workers + len(evil) + 1)))
        good = [_worker(folder, f"worker-{index}", next(ports), next(ports), step_ms) for index in range(workers)]
        bad = [_evil(folder, kind, next(ports)) for kind in evil]
        made = Stand(folder, _router(folder, good, bad, next(ports), next(ports), silence_s), good, bad)
        try:
            for server in (*good, made.router):
                server.process.start()
            await asyncio.gather(*(ready(server) for server in (*good, made.router)))
            yield made
        finally:
            await made.stop()


def _server(folder: Path, name: str, command: Sequence[str], port: int, metrics_port: int, **env: str) -> Server:
    process = Process(name, python("-m", *command), {"PYTHONPATH": str(ROOT), **env}, folder)
    return Server(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics")


def _worker(folder: Path, name: str, port: int, metrics_port: int, step_ms: float) -> Server:
    settings = {
        "WORKER_NAME": name,
        "WORKER_PORT": str(port),
        "METRICS_PORT": str(metrics_port),
        "MAX_BATCH_SIZE": str(SLOTS),
        "SIM_STEP_MS": str(step_ms),
        "SIM_STEP_PER_SEQUENCE_MS": "0",
        "SIM_PREFILL_MS_PER_TOKEN": "0",
        "SIM_JITTER": "0.2",
    }
    return _server(folder, name, ("services.worker",), port, metrics_port, **settings)


def _evil(folder: Path, kind: str, port: int) -> Server:
    command = (
        "loadtests.faults.evil",
        "--kind",
        kind,
        "--port",
        str(port),
        "--model",
        MODEL,
        "--slots",
        str(EVIL_SLOTS),
    )
    return _server(folder, f"evil-{kind}", command, port, 0)


def _router(
    folder: Path, good: Sequence[Server], evil: Sequence[Server], port: int, metrics_port: int, silence_s: float
) -> Server:
    workers = [_entry(server) for server in (*good, *evil)]
    (folder / "workers.yaml").write_text(json.dumps({"workers": workers}), encoding="utf-8")  # JSON is YAML
    (folder / "tenants.yaml").write_text(tenants_yaml([TENANT]), encoding="utf-8")
    settings = {
        "ROUTER_PORT": str(port),
        "METRICS_PORT": str(metrics_port),
        "WORKERS_FILE": str(folder / "workers.yaml"),
        "TENANTS_FILE": str(folder / "tenants.yaml"),
        "RETRIEVAL_URL": NO_RETRIEVAL,
        "STREAM_SILENCE_S": str(silence_s),
        "PROBE_INTERVAL_S": "0.25",
    }
    return _server(folder, "router", ("services.router",), port, metrics_port, **settings)


def _entry(server: Server) -> dict[str, object]:
    name = server.process.name
    if name.endswith("openai"):
        return {
            "name": name, "kind": "openai", "url": f"{server.url}/v1", "slots": EVIL_SLOTS, "models": [MODEL],
        }  # fmt: skip
    return {"name": name, "kind": "weir", "url": server.url}
