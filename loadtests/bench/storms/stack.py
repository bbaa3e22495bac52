"""Two simulated workers, a router and the storm bench, each a process of its own, as `weir up` starts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from loadtests.paths import ROOT
from loadtests.storm.command import Bench, Wanted
from services.cli.child import dies_with_parent
from services.cli.ports import free_port
from services.contracts.storm import Run
from services.runtime.settings import environment

WORKERS = 2
READY_WITHIN_S = 30.0
LOOK_EVERY_S = 0.5
NAMES = ("worker-0", "worker-1", "router", "storm")


class Stack:
    """What stands, and how it is asked."""

    def __init__(self, ports: Mapping[str, tuple[int, int]]) -> None:
        self._urls = {name: f"http://127.0.0.1:{own}" for name, (own, _) in ports.items()}
        self._client = httpx2.Client(timeout=5.0, trust_env=False, headers={"x-weir-console": "1"})
        self.bench = Bench(self._urls["storm"])

    def until_ready(self) -> None:
        """Every part answers, and the bench has looked at what it may slow."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the stack was not ready in {READY_WITHIN_S:g} s")
            time.sleep(LOOK_EVERY_S)

    def _ready(self) -> bool:
        try:
            up = all(self._client.get(f"{url}/health/ready").status_code == 200 for url in self._urls.values())
        except httpx2.HTTPError:
            return False
        return up and any(one.name == "slow_worker" and one.available for one in self.bench.state().scenarios)

    def switch(self, off: tuple[str, ...]) -> None:
        """These mechanisms off, the others on."""
        policies = {name: name not in off for name in ("admission", "fairness", "cancellation")}
        self._client.post(f"{self._urls['router']}/console/policy", json=policies).raise_for_status()

    def play(self, scenario: str, sliders: Mapping[str, float]) -> Run:
        """A run, to its end."""
        id = self.bench.start(Wanted(scenario, sliders))
        while self.bench.state().running is not None:
            time.sleep(LOOK_EVERY_S)
        return self.bench.run(id)


@contextmanager
def standing() -> Iterator[Stack]:
    """On free ports, with the defaults of every service."""
    ports = {name: (free_port(), free_port()) for name in NAMES}
    with TemporaryDirectory() as folder:
        processes = [_spawn(name, ports, Path(folder)) for name in NAMES]
        try:
            stack = Stack(ports)
            stack.until_ready()
            yield stack
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def _spawn(name: str, ports: Mapping[str, tuple[int, int]], folder: Path) -> subprocess.Popen[bytes]:
    own = {f"{name.partition('-')[0].upper()}_PORT": str(ports[name][0]), "METRICS_PORT": str(ports[name][1])}
    module = {"storm": "loadtests.storm", "router": "services.router"}.get(name, "services.worker")
    with (folder / f"{name}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=folder,
            env={**environment(), "PYTHONPATH": str(ROOT), **_told(name, ports), **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(signal.SIGTERM),
        )


def _told(name: str, ports: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Where the others are."""
    local = "http://127.0.0.1:{}".format
    workers = [ports[f"worker-{number}"] for number in range(WORKERS)]
    urls = ",".join(local(own) for own, _ in workers)
    if name == "router":
        return {"WORKERS": urls}
    if name == "storm":
        return {
            "WORKERS": urls,
            "STORM_ROUTER_URL": local(ports["router"][0]),
            "STORM_METRICS_URL": local(ports["router"][1]),
            "STORM_FAULT_URLS": ",".join(local(metrics) for _, metrics in workers),
        }
    return {"WORKER_NAME": name}
