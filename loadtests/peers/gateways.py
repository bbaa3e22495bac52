"""The gateways, each before the same workers: Weir's router, and HAProxy as haproxy.cfg has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadtests.fire.processes import Process, free_ports, until_ready
from loadtests.fire.stand import Server, Shape, Stand, start_router

CONFIG = Path(__file__).with_name("haproxy.cfg")
ALSO_IN = "/usr/sbin:/usr/local/sbin"  # where packages put it, and where PATH may not look


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What is promised: the longest deadline of the service, and the shortest, in milliseconds."""

    longest_ms: float
    shortest_ms: float


@dataclass(frozen=True, slots=True)
class Gateway:
    """One column of the table: `start` puts it before the workers of a stand."""

    name: str
    about: str
    route: str
    start: Callable[[Stand, Sequence[str], Deadlines], Coroutine[Any, Any, None]]


async def _start_weir(made: Stand, tenants: Sequence[str], deadlines: Deadlines) -> None:
    await start_router(made, tenants)


async def _start_haproxy_promised(made: Stand, tenants: Sequence[str], deadlines: Deadlines) -> None:
    await _start_haproxy(made, the_promise(made.shape, deadlines))


async def _start_haproxy_tuned(made: Stand, tenants: Sequence[str], deadlines: Deadlines) -> None:
    await _start_haproxy(made, in_time_for_the_tightest(made.shape, deadlines))


async def _start_haproxy(made: Stand, queue_ms: float) -> None:
    path = haproxy()
    if path is None:
        raise RuntimeError("haproxy is not installed")
    port, health_port = free_ports(2)
    env = settings(made, port, health_port, queue_ms)
    process = Process("haproxy", [path, "-db", "-f", str(CONFIG)], env, made.folder)
    made.router = Server(process, f"http://127.0.0.1:{port}")
    process.start()
    await until_ready(process, f"http://127.0.0.1:{health_port}/health/ready")


def settings(made: Stand, port: int, health_port: int, queue_ms: float) -> dict[str, str]:
    """What haproxy.cfg takes from the environment."""
    return {
        "PORT": str(port),
        "HEALTH_PORT": str(health_port),
        "QUEUE_MS": f"{queue_ms:.0f}",
        "SLOTS": str(made.shape.slots),
        **{f"WORKER_{index}": str(urlsplit(worker.url).port) for index, worker in enumerate(made.workers)},
    }


def haproxy() -> str | None:
    """Where it is installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path=ALSO_IN)


def haproxy_version(path: str) -> str:
    """`HAProxy version 2.6.12-1 ...`, as it says itself."""
    said = subprocess.run([path, "-v"], capture_output=True, text=True, check=False).stdout
    return " ".join(said.split()[:3]) or "HAProxy"


def the_promise(shape: Shape, deadlines: Deadlines) -> float:
    """What the manual suggests: nobody waits longer than the service promises."""
    return deadlines.longest_ms


def in_time_for_the_tightest(shape: Shape, deadlines: Deadlines) -> float:
    """Tuned by one who knows the service time and every deadline: wait no longer than leaves time for the answer."""
    return max(1.0, deadlines.shortest_ms - 1.5 * shape.service_s * 1000)


GATEWAYS = (
    Gateway("Weir", "its default settings", "completions", _start_weir),
    Gateway("HAProxy", "timeout queue = the longest deadline promised", "generate",
            _start_haproxy_promised),
    Gateway("HAProxy, tuned", "timeout queue = the shortest deadline less one and a half service times", "generate",
            _start_haproxy_tuned),
)  # fmt: skip
