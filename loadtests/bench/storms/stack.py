"""Two simulated workers, a router and the storm bench, each a process of its own, as `weir up` starts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from loadtests.cluster.processes import Process, free_ports, python, until_ready
from loadtests.paths import ROOT
from loadtests.storm.command import Bench, Wanted
from services.contracts.storm import Run

WORKERS = 2
READY_WITHIN_S = 30.0
LOOK_EVERY_S = 0.5
NAMES = ("worker-0", "worker-1", "router", "storm")
Ports = Mapping[str, tuple[int, int]]
"""Of each part: its own port, and that of its metrics."""


class Stack:
    """What stands, and how it is asked."""

    def __init__(self, ports: Ports) -> None:
        self._router = _local(ports["router"][0])
        self._client = httpx2.Client(timeout=5.0, trust_env=False, headers={"x-weir-console": "1"})
        self.bench = Bench(_local(ports["storm"][0]))

    async def until_slowable(self) -> None:
        """The bench has looked at what it may slow."""
        async with asyncio.timeout(READY_WITHIN_S):
            while not any(one.name == "slow_worker" and one.available for one in self.bench.state().scenarios):
                await asyncio.sleep(LOOK_EVERY_S)

    def switch(self, off: tuple[str, ...]) -> None:
        """These mechanisms off, the others on."""
        policies = {name: name not in off for name in ("admission", "fairness", "cancellation")}
        self._client.post(f"{self._router}/console/policy", json=policies).raise_for_status()

    async def play(self, scenario: str, sliders: Mapping[str, float]) -> Run:
        """A run, to its end."""
        id = self.bench.start(Wanted(scenario, sliders))
        while self.bench.state().running is not None:
            await asyncio.sleep(LOOK_EVERY_S)
        return self.bench.run(id)


@asynccontextmanager
async def standing() -> AsyncIterator[Stack]:
    """On free ports, with the defaults of every service."""
    numbers = iter(free_ports(2 * len(NAMES)))
    ports = {name: (next(numbers), next(numbers)) for name in NAMES}
    async with AsyncExitStack() as stopping:
        folder = Path(stopping.enter_context(TemporaryDirectory()))
        processes = [Process(name, python("-m", _module(name)), _told(name, ports), folder) for name in NAMES]
        for process in processes:
            process.start()
            stopping.push_async_callback(process.stop)
        for process in processes:
            await until_ready(process, f"{_local(ports[process.name][0])}/health/ready", READY_WITHIN_S)
        stack = Stack(ports)
        await stack.until_slowable()
        yield stack


def _module(name: str) -> str:
    return {"storm": "loadtests.storm", "router": "services.router"}.get(name, "services.worker")


def _local(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _told(name: str, ports: Ports) -> dict[str, str]:
    """Where it listens, and where the others are."""
    own, metrics = ports[name]
    told = {
        f"{name.partition('-')[0].upper()}_PORT": str(own), "METRICS_PORT": str(metrics), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    workers = [ports[f"worker-{number}"] for number in range(WORKERS)]
    urls = ",".join(_local(port) for port, _ in workers)
    if name == "router":
        return {**told, "WORKERS": urls}
    if name == "storm":
        return {
            **told,
            "WORKERS": urls,
            "STORM_ROUTER_URL": _local(ports["router"][0]),
            "STORM_METRICS_URL": _local(ports["router"][1]),
            "STORM_FAULT_URLS": ",".join(_local(port) for _, port in workers),
        }
    return {**told, "WORKER_NAME": name}
