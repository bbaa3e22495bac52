"""A router on a core of its own, before a stub that answers at once; its requests, and how to fill it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from loadtests.bench.stub import stub
from loadtests.cluster.processes import NOTHING, free_ports, started
from loadtests.cluster.stand import NO_RETRIEVAL
from loadtests.cluster.usage import cores, pinned
from loadtests.load.closed import post

ROUTER = "services.router"
CONNECTIONS = 32
FULL = {"MAX_INFLIGHT": "1", "MAX_QUEUE_SIZE": "1", "TENANT_QUEUE_SIZE": "1"}
"""With two held requests, one running and one waiting, the router rejects all others."""
HELD = 2
HOLD_S = 0.4
ROUTE = "/v1/chat/completions"
MESSAGES = [
    {"role": "system", "content": "You are a lock keeper."},
    {"role": "user", "content": "What does a weir do to a river that is in flood, and why?"},
]
TENANTS = 16
DIFFERENT = 997
"""Prime, so that clients in turn do not meet the same request again soon."""


@dataclass(frozen=True)
class Router:
    pid: int
    port: int
    metrics_port: int


@dataclass(frozen=True)
class Workers:
    """`count` entries of the router's workers file for a stub, and for each of the stubs at the ports in `also`."""

    count: int = 1
    slots: int = 1000
    models: tuple[str, ...] = ("fast", "hang")
    also: tuple[int, ...] = ()

    def written(self, folder: Path, stub_port: int) -> Path:
        """Writes the workers file into the folder and returns its path."""
        shape = {"kind": "openai", "slots": self.slots, "models": self.models}
        urls = [f"http://127.0.0.1:{port}/v1" for port in (stub_port, *self.also) for _ in range(self.count)]
        entries = [{"name": f"stub-{number}", "url": url, **shape} for number, url in enumerate(urls)]
        file = folder / "workers.yaml"
        file.write_text(json.dumps({"workers": entries}), encoding="utf-8")  # JSON is YAML
        return file


@asynccontextmanager
async def router_before(
    stub_port: int,
    settings: Mapping[str, str] = NOTHING,
    *,
    words: Sequence[str] = (ROUTER,),
    workers: Workers = Workers(),
    under: Sequence[str] = (),
) -> AsyncIterator[Router]:
    """A router on a core of its own, with default settings. `words`: the module to run, and its arguments; `under`: a
    program that runs it.
    """
    port, metrics_port = free_ports(2)
    own_core, _ = cores()
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "RETRIEVAL_URL": NO_RETRIEVAL,
            "WORKERS_FILE": str(workers.written(Path(folder), stub_port)), **settings,
        }  # fmt: skip
        ready = f"http://127.0.0.1:{port}/health/ready"
        async with started(*words, ready=ready, env=env, cores=own_core, under=under) as process:
            yield Router(process.pid, port, metrics_port)


@asynccontextmanager
async def standing(settings: Mapping[str, str] = NOTHING, *, workers: Workers = Workers()) -> AsyncIterator[Router]:
    """A stub and a router before it; this process and the stub share the other core."""
    with pinned(cores()[1]):
        async with stub() as stub_port, router_before(stub_port, settings, workers=workers) as made:
            yield made


def chat(port: int, model: str = "fast", *, stream: bool = False, tenant: str = "", **more: object) -> bytes:
    """The bytes of a chat completion of 64 tokens."""
    return _asked(port, {"model": model, "messages": MESSAGES, "max_tokens": 64, "stream": stream, **more}, tenant)


def all_different(port: int, max_tokens: int = 64) -> Callable[[], bytes]:
    """Chat completions in turn, so many that no connection sends the same twice in a row: none is an early retry."""
    numbers = range(DIFFERENT, 2 * DIFFERENT)
    return cycle([chat(port, seed=number, max_tokens=max_tokens) for number in numbers]).__next__


def of_tenants(port: int) -> list[bytes]:
    """The bytes of a shorter one for each of sixteen tenants."""
    body = {"model": "fast", "messages": MESSAGES[1:], "max_tokens": 64}
    return [_asked(port, body, f"tenant-{number}") for number in range(TENANTS)]


def _asked(port: int, body: Mapping[str, object], tenant: str) -> bytes:
    request = post(port, ROUTE, json.dumps(body, separators=(",", ":")).encode())
    return request.replace(b"\r\nhost:", b"\r\nx-tenant: %s\r\nhost:" % tenant.encode(), 1) if tenant else request
