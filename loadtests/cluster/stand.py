"""A test bed: simulated workers with a known service time and a router with the given tenants.

Tenants have keys, as in production. Weights are equal and answers are not cut unless configured, so an answer has the
same worth at half of the capacity and at ten times it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.cluster.processes import Process, free_ports, get, python, until_ready
from loadtests.paths import ROOT

HOST = "127.0.0.1"
NO_RETRIEVAL = f"http://{HOST}:9"  # completions use no retrieval
KEY_PREFIX = "fire-"
WORKER = "services.worker"


@dataclass(frozen=True, slots=True)
class Shape:
    """The workers' speed: `slots` sequences each, a token every `step_ms`, `answer_tokens` in a usual answer.

    A step takes `per_sequence_ms` longer per sequence and `prefill_ms` per prompt token that it reads; a usual prompt
    has `prompt_tokens`.
    """

    workers: int = 2
    slots: int = 8
    step_ms: float = 10.0
    answer_tokens: int = 8
    jitter: float = 0.1
    per_sequence_ms: float = 0.0
    prefill_ms: float = 0.0
    prompt_tokens: int = 16

    @property
    def all_slots(self) -> int:
        return self.workers * self.slots

    @property
    def service_s(self) -> float:
        """The time of a usual answer with every slot busy, including the reading of others' prompts."""
        writing_ms = (self.step_ms + self.per_sequence_ms * self.slots) * self.answer_tokens
        reading_ms = self.prefill_ms * self.prompt_tokens * self.slots
        return (max(writing_ms, reading_ms) + reading_ms) / 1000  # a step reads for as long as it writes, by default

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{workers} x {self.slots} slots x {self.service_s * 1000:.0f} ms"


@dataclass
class Server:
    """One process and its addresses."""

    process: Process
    url: str
    metrics_url: str = ""

    def state(self) -> dict[str, Any]:
        """A router's /admin/state."""
        found: dict[str, Any] = json.loads(get(f"{self.metrics_url.removesuffix('/metrics')}/admin/state"))
        return found


@dataclass
class Stand:
    """The running processes. `settings`: a router's settings for these workers, beside the defaults.

    `frontends`: how many routers or gateways are to stand before the workers: `router`, and those `beside` it.
    `weights`: of the tenants, where it is not 1.
    """

    shape: Shape
    folder: Path
    workers: list[Server] = field(default_factory=list)
    router: Server | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    beside: list[Server] = field(default_factory=list)
    frontends: int = 1
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The router's address."""
        if self.router is None:
            raise RuntimeError("this stand has no router")
        return self.router.url

    def check(self) -> None:
        for server in self.servers:
            server.process.check()

    @property
    def fronts(self) -> list[Server]:
        """The routers or gateways that were started."""
        return [*([self.router] if self.router is not None else []), *self.beside]

    @property
    def servers(self) -> list[Server]:
        return [*self.workers, *self.fronts]

    async def stop(self) -> None:
        """Stop everything, the router first."""
        for server in reversed(self.servers):
            await server.process.stop()


def key_of(tenant: str) -> str:
    return f"{KEY_PREFIX}{tenant}"


@asynccontextmanager
async def stand(
    shape: Shape, tenants: Sequence[str], *, router: bool = True, worker: str = WORKER
) -> AsyncIterator[Stand]:
    """Run a test bed, and stop it in every case. `worker`: the module of a worker."""
    with tempfile.TemporaryDirectory(prefix="weir-fire-") as folder:
        made = Stand(shape, Path(folder))
        try:
            await _start_workers(made, worker)
            if router:
                await start_router(made, tenants)
            yield made
        finally:
            await made.stop()


async def _start_workers(made: Stand, module: str) -> None:
    ports = free_ports(2 * made.shape.workers)
    for index in range(made.shape.workers):
        made.workers.append(_worker(made, module, index, *ports[2 * index : 2 * index + 2]))
        made.workers[-1].process.start()
    await asyncio.gather(*(ready(worker) for worker in made.workers))


def service(
    name: str, module: str, kind: str, ports: tuple[int, int], settings: Mapping[str, str], folder: Path
) -> Server:
    """A router, worker or retrieval (`kind`) with default settings except `settings`.

    `ports`: the service's and its metrics'.
    """
    port, metrics_port = ports
    listens = {f"{kind.upper()}_PORT": str(port), "METRICS_PORT": str(metrics_port), "PYTHONPATH": str(ROOT)}
    process = Process(name, python("-m", module), {**listens, **settings}, folder)
    return Server(process, f"http://{HOST}:{port}", f"http://{HOST}:{metrics_port}/metrics")


def _worker(made: Stand, module: str, index: int, port: int, metrics_port: int) -> Server:
    shape = made.shape
    settings = {
        "WORKER_NAME": f"worker-{index}",
        "MAX_BATCH_SIZE": str(shape.slots),
        "SIM_STEP_MS": str(shape.step_ms),
        "SIM_STEP_PER_SEQUENCE_MS": str(shape.per_sequence_ms),
        "SIM_PREFILL_MS_PER_TOKEN": str(shape.prefill_ms),
        "SIM_JITTER": str(shape.jitter),
        "SIM_SEED": str(index),
    }
    return service(f"worker-{index}", module, "worker", (port, metrics_port), settings, made.folder)


async def start_router(
    made: Stand,
    tenants: Sequence[str],
    settings: Mapping[str, str] | None = None,
    may_be_cut: frozenset[str] = frozenset(),
) -> None:
    """Start the router with default settings, except its workers, its tenants, `made.settings` and `settings`."""
    port, metrics_port = free_ports(2)
    file = made.folder / "tenants.yaml"
    file.write_text(tenants_yaml(tenants, may_be_cut, made.weights), encoding="utf-8")
    environment = {
        "WORKERS": ",".join(worker.url for worker in made.workers),
        "TENANTS_FILE": str(file),
        "RETRIEVAL_URL": NO_RETRIEVAL,
        **made.settings,
        **(settings or {}),
    }
    made.router = service("router", "services.router", "router", (port, metrics_port), environment, made.folder)
    made.router.process.start()
    await ready(made.router)


async def ready(server: Server) -> None:
    await until_ready(server.process, f"{server.url}/health/ready")


def tenants_yaml(
    tenants: Sequence[str], may_be_cut: frozenset[str] = frozenset(), weights: Mapping[str, float] | None = None
) -> str:
    """The tenants file: a key each, the weight where it is not 1, and whether answers may be shortened."""
    lines = ["tenants:"]
    for tenant in tenants:
        digest = hashlib.sha256(key_of(tenant).encode("ascii")).hexdigest()
        weight = f", weight: {weights[tenant]:g}" if weights and tenant in weights else ""
        cut = ", degrade: true" if tenant in may_be_cut else ""
        lines.append(f'  - {{id: {tenant}, keys: ["sha256:{digest}"]{weight}{cut}}}')
    return "\n".join(lines) + "\n"
