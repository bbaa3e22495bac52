"""A router before a Weir worker with the simulated engine and before a recording server, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.cluster.processes import free_ports, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL, Server, key_of, service, tenants_yaml
from tests.real.clients.recorder import MODEL as OTHER
from tests.real.clients.table import HERE, Client

OWN = "weir-sim"
NICE = ["nice", "-n", "5"]
CLIENT_WITHIN_S = 300
NOBODY_WITHIN_S = 30
OPEN, LIMITED = "open", "limited"
"""Tenants: one without a limit, and one with a request in ten seconds."""


class Running(NamedTuple):
    router: Server
    folder: Path

    @property
    def base_url(self) -> str:
        return f"{self.router.url}/v1"

    def workers(self) -> list[dict[str, Any]]:
        """The workers' entries in /admin/state."""
        found: list[dict[str, Any]] = self.router.state()["workers"]
        return found

    def until_nobody_is_served(self) -> None:
        end = time.monotonic() + NOBODY_WITHIN_S
        while any(worker["inflight"] for worker in self.workers()):
            assert time.monotonic() < end, self.workers()
            time.sleep(0.05)

    def home_of(self, client: Client) -> Path:
        """The folder that the client runs in."""
        return home_of(client, self.folder)

    def operations(self, client: Client) -> dict[str, Any]:
        """What each operation of a client's script has found."""
        given = {
            "base_url": self.base_url, "key": key_of(OPEN), "limited_key": key_of(LIMITED), "own": OWN, "other": OTHER,
            "operations": list(client.operations),
        }  # fmt: skip
        script = str(HERE / "scripts" / client.script)
        done = in_environment(client, "python", [script, json.dumps(given)], self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def home_of(client: Client, folder: Path) -> Path:
    return folder / f"home-{client.name}"


def in_environment(
    client: Client, command: str, words: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program of the client's environment, in a folder of its own."""
    program = client.program(command)
    assert program is not None
    home = home_of(client, folder)
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(home), "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200", **dict(client.environment),
    }  # fmt: skip
    return subprocess.run(
        [*NICE, str(program), *words], cwd=home, env=environment, capture_output=True, text=True,
        timeout=CLIENT_WITHIN_S, check=False,
    )  # fmt: skip


@contextmanager
def running(recorder_url: str, folder: Path, *, own: bool = True) -> Iterator[Running]:
    """`own`: whether there is a Weir worker beside the recording server."""
    ports = free_ports(4)
    engine = {"WORKER_NAME": "own", "MAX_BATCH_SIZE": "8", "SIM_STEP_MS": "5"}
    worker = service("worker", "services.worker", "worker", (ports[0], ports[1]), engine, folder)
    listing = folder / "workers.yaml"
    others = f"workers:\n  - {{name: other, kind: openai, url: '{recorder_url}', slots: 8}}\n"
    owns = f"  - {{name: own, kind: weir, url: '{worker.url}'}}\n" if own else ""
    listing.write_text(others + owns, encoding="utf-8")
    tenants = tenants_yaml((OPEN, LIMITED)).replace(f"id: {LIMITED},", f"id: {LIMITED}, rate: {{requests_per_s: 0.1}},")
    (folder / "tenants.yaml").write_text(tenants, encoding="utf-8")
    settings = {
        "WORKERS_FILE": str(listing), "TENANTS_FILE": str(folder / "tenants.yaml"), "RETRIEVAL_URL": NO_RETRIEVAL,
        "PROBE_INTERVAL_S": "0.2", "DEFAULT_SLO_MS": "60000",
    }  # fmt: skip
    router = service("router", "services.router", "router", (ports[2], ports[3]), settings, folder)
    try:
        worker.process.start()
        asyncio.run(until_ready(worker.process, f"{worker.url}/health/ready"))
        router.process.start()
        asyncio.run(until_ready(router.process, f"{router.url}/health/ready"))
        made = Running(router, folder)
        end = time.monotonic() + NOBODY_WITHIN_S
        while not all(one["healthy"] for one in made.workers()):
            assert time.monotonic() < end, made.workers()
            time.sleep(0.05)
        yield made
    finally:
        asyncio.run(router.process.stop())
        asyncio.run(worker.process.stop())
