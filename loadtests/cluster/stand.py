"""A stand: simulated workers of a known service time, and the router before them with a tenant for each that will ask.

Tenants have keys, as in production: weights are equal, and nothing may be cut from an answer unless it is said, so that
an answer at ten times capacity is worth what one at half of it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtests.cluster.processes import Process, free_ports, python, until_ready
from loadtests.paths import ROOT

HOST = "127.0.0.1"
NO_RETRIEVAL = f"http://{HOST}:9"  # completions retrieve nothing
KEY_PREFIX = "fire-"
WORKER = "services.worker"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the workers can do: `slots` sequences each, a token every `step_ms`, `answer_tokens` in a usual answer.

    A step takes `per_sequence_ms` longer for each sequence in it, and `prefill_ms` for each token of a prompt that it
    reads; `prompt_tokens` are in a usual prompt.
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
        """How long a usual answer takes where every slot is taken, so that others' prompts are read meanwhile."""
        reading_ms = self.prefill_ms * self.prompt_tokens * self.slots
        return ((self.step_ms + self.per_sequence_ms * self.slots) * self.answer_tokens + reading_ms) / 1000

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{workers} x {self.slots} slots x {self.service_s * 1000:.0f} ms"


@dataclass
class Server:
    """One process of the stand and where it listens."""

    process: Process
    url: str
    metrics_url: str = ""


@dataclass
class Stand:
    """What runs. `settings` are those of a router before the workers, beside its default ones."""

    shape: Shape
    folder: Path
    workers: list[Server] = field(default_factory=list)
    router: Server | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where clients ask."""
        if self.router is None:
            raise RuntimeError("this stand has no router")
        return self.router.url

    def check(self) -> None:
        """Raises StandError if a process has ended."""
        for server in self.servers:
            server.process.check()

    @property
    def servers(self) -> list[Server]:
        return [*self.workers, *([self.router] if self.router is not None else [])]

    async def stop(self) -> None:
        """Everything, the front door first."""
        for server in reversed(self.servers):
            await server.process.stop()


def key_of(tenant: str) -> str:
    """The key with which a tenant of a stand asks."""
    return f"{KEY_PREFIX}{tenant}"


@asynccontextmanager
async def stand(
    shape: Shape, tenants: Sequence[str], *, router: bool = True, worker: str = WORKER
) -> AsyncIterator[Stand]:
    """Start it, and stop it whatever happens. `worker` is the module that is run as a worker."""
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
    """A process of ours: a router, worker or retrieval (`kind`), with its default settings but for these.

    `ports`: where it listens, and where its metrics do.
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
    """The router, with its default settings but for where its workers and tenants are, the stand's, and `settings`."""
    port, metrics_port = free_ports(2)
    file = made.folder / "tenants.yaml"
    file.write_text(tenants_yaml(tenants, may_be_cut), encoding="utf-8")
    told = {
        "WORKERS": ",".join(worker.url for worker in made.workers),
        "TENANTS_FILE": str(file),
        "RETRIEVAL_URL": NO_RETRIEVAL,
        **made.settings,
        **(settings or {}),
    }
    made.router = service("router", "services.router", "router", (port, metrics_port), told, made.folder)
    made.router.process.start()
    await ready(made.router)


async def ready(server: Server) -> None:
    """Until it can take work."""
    await until_ready(server.process, f"{server.url}/health/ready")


def tenants_yaml(tenants: Sequence[str], may_be_cut: frozenset[str] = frozenset()) -> str:
    """The tenants file: a key each, and whether an answer may be made shorter; all else by default."""
    lines = ["tenants:"]
    for tenant in tenants:
        digest = hashlib.sha256(key_of(tenant).encode("ascii")).hexdigest()
        cut = ", degrade: true" if tenant in may_be_cut else ""
        lines.append(f'  - {{id: {tenant}, keys: ["sha256:{digest}"]{cut}}}')
    return "\n".join(lines) + "\n"
