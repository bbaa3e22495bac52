"""The gateways, each before the same workers, each with the configuration in `configs/` that its users would call fair.

What a configuration takes from the load at hand is made here, by one rule for all (`Values`): a worker gets as many
requests as it has slots, as many again may wait, and nobody waits longer than the service promises.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.stand import Server, Shape, Stand, start_router
from loadtests.runs.peers import environments

CONFIGS = Path(__file__).with_name("configs")
ALSO_IN = "/usr/sbin:/usr/local/sbin"  # where packages put it, and where PATH may not look
LITELLM_KEY = "sk-bench-0f3c1e5b7a9d2468ace13579"  # it refuses to start with a key that is short or well known
READY_WITHIN_S = 150.0  # LiteLLM needs a dozen seconds of a core to start
WAIT_IN_SERVICES = 1.5  # what must be left of a deadline when its request leaves the queue


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What is promised: the longest deadline of the service, and the shortest, in milliseconds."""

    longest_ms: float
    shortest_ms: float


def values(made: Stand, deadlines: Deadlines, port: int, other_port: int) -> dict[str, str]:
    """What a configuration may name in `${}`; `other_port` is for health or metrics."""
    shape = made.shape
    found = {
        "PORT": port,
        "HEALTH_PORT": other_port,
        "METRICS_PORT": other_port,
        "SLOTS": shape.slots,
        "ALL_SLOTS": shape.all_slots,
        "QUEUE_SIZE": shape.all_slots,
        "TENANT_LIMIT": shape.all_slots + shape.all_slots // 2,
        "ALL_TENANTS_QUEUE_SIZE": 2 * shape.all_slots,
        "QUEUE_MS": f"{in_time_for_the_tightest(shape, deadlines):.0f}",
        "LONGEST_S": max(1, round(deadlines.longest_ms / 1000)),
        "KEY": LITELLM_KEY,
        **{f"WORKER_{index}": worker.url for index, worker in enumerate(made.workers)},
    }
    return {name: str(value) for name, value in found.items()}


def in_time_for_the_tightest(shape: Shape, deadlines: Deadlines) -> float:
    """The longest wait, in milliseconds, that leaves the shortest deadline time for an answer."""
    return max(1.0, deadlines.shortest_ms - WAIT_IN_SERVICES * shape.service_s * 1000)


@dataclass(frozen=True, slots=True)
class Command:
    """How a gateway is run: a command line, settings, and where it says that it is ready."""

    line: Sequence[str]
    ready_url: str
    env: Mapping[str, str] | None = None


Build = Callable[[Path, Mapping[str, str], Path], Command]
"""A command from the program, the values and a folder for files."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One column of the table. `package` is what pip fetches for it, `program` what is run; neither is Weir's."""

    name: str
    about: str
    program: Callable[[], Path | None] | None = None
    build: Build | None = None
    package: str = ""
    key: str | None = None  # the one key it knows, where it knows no tenants
    warm_up_s: float = 0.0  # of a few requests before the load, for what loads parts of itself with the first ones

    def missing(self) -> str:
        """Why it cannot be run here; empty if it can."""
        if self.program is None or self.program() is not None:
            return ""
        return f"{self.name} is not installed"

    async def start(self, made: Stand, tenants: Sequence[str], deadlines: Deadlines) -> None:
        """Put it before the workers of a stand."""
        if self.program is None or self.build is None:
            await start_router(made, tenants)
            return
        program = self.program()
        if program is None:
            raise RuntimeError(self.missing())
        port, other_port = free_ports(2)
        command = self.build(program, values(made, deadlines, port, other_port), made.folder)
        process = Process("gateway", command.line, command.env or {}, made.folder)
        made.router = Server(process, f"http://127.0.0.1:{port}")
        process.start()
        await until_ready(process, command.ready_url, READY_WITHIN_S)


def haproxy() -> Path | None:
    """Where it is installed."""
    found = shutil.which("haproxy") or shutil.which("haproxy", path=ALSO_IN)
    return None if found is None else Path(found)


def haproxy_version(path: Path) -> str:
    """`HAProxy version 2.6.12-1 ...`, as it says itself."""
    said = subprocess.run([str(path), "-v"], capture_output=True, text=True, check=False).stdout
    return " ".join(said.split()[:3]) or "HAProxy"


def haproxy_with(config: str) -> Build:
    """HAProxy reads its values from the environment; a worker is a port to it."""

    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        ports = {name: str(urlsplit(url).port) for name, url in given.items() if name.startswith("WORKER_")}
        ready = f"http://127.0.0.1:{given['HEALTH_PORT']}/health/ready"
        return Command([str(program), "-db", "-f", str(CONFIGS / config)], ready, {**given, **ports})

    return build


def litellm(program: Path, given: Mapping[str, str], folder: Path) -> Command:
    """Its own variables: `LITELLM_LOG=ERROR` as its documents advise, and no price list from the network."""
    file = folder / "litellm.yaml"
    file.write_text(filled("litellm.yaml", given), encoding="utf-8")
    line = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", given["PORT"], "--num_workers", "1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    return Command(line, f"http://127.0.0.1:{given['PORT']}/health/readiness", env)


def router_with(config: str) -> Build:
    """vllm-router and sglang-router take arguments."""

    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        lines = (line.strip() for line in filled(config, given).splitlines())
        arguments = [line for line in lines if line and not line.startswith("#")]
        return Command([str(program), *arguments], f"http://127.0.0.1:{given['PORT']}/readiness")

    return build


def filled(config: str, given: Mapping[str, str]) -> str:
    """A configuration with its values. Raises KeyError where one is missing."""
    return Template((CONFIGS / config).read_text(encoding="utf-8")).substitute(given)


GATEWAYS = (
    Gateway("Weir", "its default settings"),
    Gateway("HAProxy", "`maxconn` and a queue with a time limit", haproxy, haproxy_with("haproxy.cfg")),
    Gateway("HAProxy by hand", "limits, order and refusals written for this very load", haproxy,
            haproxy_with("haproxy_by_hand.cfg")),
    Gateway("LiteLLM", "one proxy process, warmed up before each load", environments.program("litellm"), litellm,
            "litellm", LITELLM_KEY, warm_up_s=4.0),
    Gateway("vllm-router", "its concurrency limit and queue", environments.program("vllm-router"),
            router_with("vllm_router.args"), "vllm-router"),
    Gateway("sglang-router", "its concurrency limit and queue", environments.program("sglang-router"),
            router_with("sglang_router.args"), "sglang-router"),
)  # fmt: skip
