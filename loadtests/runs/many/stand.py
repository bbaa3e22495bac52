"""The store, the workers and the routers as processes, each in its namespace, with their logs in the run's folder."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.request import Request, urlopen

from loadtests.cluster.books import total
from loadtests.cluster.processes import LOOK_EVERY_S, READY_WITHIN_S, Process, StandError, python, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL
from loadtests.paths import ROOT
from loadtests.runs.many.addresses import Net, Node
from loadtests.runs.many.commands import inside
from loadtests.runs.many.sizes import Sizes
from loadtests.runs.many.tenants import tenants_file
from services.cli.valkey import program

ROUTER_PORT, WORKER_PORT, METRICS_PORT, STORE_PORT = 8000, 8010, 9000, 6379
STORE_MB = 64
ANSWER_WITHIN_S = 2.0
PASSED_ON = ("WEIR_CODE",)
"""Settings of the caller that the processes get: which form of the code they run."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Of one run."""

    token: str
    password: str

    @classmethod
    def new(cls) -> Secrets:
        return cls(secrets.token_hex(16), secrets.token_hex(16))


def router_settings(net: Net, node: Node, own: Secrets, folder: Path) -> dict[str, str]:
    """Default settings, except for its place, its peers and its name."""
    return {
        **_listening(node, own), "ROUTER_PORT": str(ROUTER_PORT), "ROUTER_NAME": node.name,
        "EXCHANGE_URL": f"redis://:{own.password}@{net.store.address}:{STORE_PORT}/0",
        "WORKERS_FILE": str(folder / "workers.yaml"), "TENANTS_FILE": str(folder / "tenants.yaml"),
        "RETRIEVAL_URL": NO_RETRIEVAL,
    }  # fmt: skip


def worker_settings(node: Node, own: Secrets, sizes: Sizes, number: int) -> dict[str, str]:
    """DEBUG logs the start and the end of every job."""
    return {
        **_listening(node, own), "WORKER_PORT": str(WORKER_PORT), "WORKER_NAME": node.name, "LOG_LEVEL": "DEBUG",
        "MAX_BATCH_SIZE": str(sizes.slots), "SIM_STEP_MS": f"{sizes.step_ms:g}", "SIM_STEP_PER_SEQUENCE_MS": "0",
        "SIM_PREFILL_MS_PER_TOKEN": "0", "SIM_JITTER": f"{sizes.jitter:g}", "SIM_SEED": str(number),
    }  # fmt: skip


def _listening(node: Node, own: Secrets) -> dict[str, str]:
    return {
        "HOST": node.address, "METRICS_HOST": node.address, "METRICS_PORT": str(METRICS_PORT),
        "INTERNAL_TOKEN": own.token, "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def store_settings(node: Node, own: Secrets, folder: Path) -> str:
    """Valkey's configuration: nothing on disk, so that it restarts empty, and nothing evicted."""
    lines = (
        f"bind {node.address}", f"port {STORE_PORT}", f"requirepass {own.password}", f"maxmemory {STORE_MB}mb",
        "maxmemory-policy noeviction", 'save ""', "appendonly no", f'dir "{folder}"',
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def workers_file(net: Net) -> str:
    entries = [{"name": node.name, "kind": "weir", "url": url_of(node, WORKER_PORT)} for node in net.workers]
    return json.dumps({"workers": entries})  # JSON is YAML


def url_of(node: Node, port: int) -> str:
    return f"http://{node.address}:{port}"


class Stand:
    """The running processes, by the names of their nodes."""

    def __init__(self, net: Net, sizes: Sizes, folder: Path) -> None:
        """Raises StandError if there is no Valkey for this platform."""
        binary = program()
        if binary is None:
            raise StandError("no embedded Valkey for this platform")
        self.net = net
        self.own = Secrets.new()
        self._folder = folder.absolute()
        self._write_files()
        more = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        store = (str(binary), str(self._folder / "valkey.conf"))
        self.processes = {net.store.name: self._process(net.store, store, {})}
        for number, node in enumerate(net.workers):
            settings = worker_settings(node, self.own, sizes, number) | more
            self.processes[node.name] = self._process(node, python("-m", "services.worker"), settings)
        for node in net.routers:
            settings = router_settings(net, node, self.own, self._folder) | more
            self.processes[node.name] = self._process(node, python("-m", "services.router"), settings)

    def _write_files(self) -> None:
        config = store_settings(self.net.store, self.own, self._folder)
        files = {"workers.yaml": workers_file(self.net), "tenants.yaml": tenants_file(), "valkey.conf": config}
        for name, text in files.items():
            (self._folder / name).write_text(text, encoding="utf-8")

    def _process(self, node: Node, command: Sequence[str], settings: Mapping[str, str]) -> Process:
        return Process(node.name, inside(node, command), settings, self._folder)

    @property
    def router_urls(self) -> dict[str, str]:
        return {node.name: url_of(node, ROUTER_PORT) for node in self.net.routers}

    def router_pids(self) -> list[int]:
        return [self.processes[node.name].pid for node in self.net.routers]

    async def start(self, name: str) -> None:
        """Start it, or start it again, and wait until it is ready. Raises StandError."""
        process = self.processes[name]
        process.start()
        if name == self.net.store.name:
            await self._until_store_answers(process)
        else:
            port = WORKER_PORT if name in {node.name for node in self.net.workers} else ROUTER_PORT
            await until_ready(process, f"{url_of(self.net.node(name), port)}/health/ready")

    async def start_all(self) -> None:
        await self.start(self.net.store.name)
        for nodes in (self.net.workers, self.net.routers):
            await asyncio.gather(*(self.start(node.name) for node in nodes))

    async def stop(self) -> None:
        """Stop everything, routers first, so that their logs are written."""
        for nodes in (self.net.routers, self.net.workers, (self.net.store,)):
            await asyncio.gather(*(self.processes[node.name].stop() for node in nodes))

    def ended(self) -> list[str]:
        """Those that do not run."""
        return [name for name, process in self.processes.items() if not process.running]

    async def held(self) -> float:
        """Requests that routers hold now. Raises OSError."""
        texts = await asyncio.gather(*(asyncio.to_thread(self._metrics, node) for node in self.net.routers))
        return sum(total(text, "weir_inflight") for text in texts)

    def _metrics(self, node: Node) -> str:
        headers = {"authorization": f"Bearer {self.own.token}"}
        asked = Request(f"{url_of(node, METRICS_PORT)}/metrics", headers=headers)
        with urlopen(asked, timeout=ANSWER_WITHIN_S) as answer:
            body: bytes = answer.read()
        return body.decode()

    async def _until_store_answers(self, process: Process) -> None:
        end = monotonic() + READY_WITHIN_S
        while monotonic() < end:
            process.check()
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    reader, writer = await asyncio.open_connection(self.net.store.address, STORE_PORT)
                    writer.write(f"AUTH {self.own.password}\r\nPING\r\n".encode())
                    answers = [await reader.readline(), await reader.readline()]
                    writer.close()
                if answers[1] == b"+PONG\r\n":
                    return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(LOOK_EVERY_S)
        raise StandError(f"the store was not ready within {READY_WITHIN_S:g} s:\n{process.last_words()}")


@asynccontextmanager
async def standing(net: Net, sizes: Sizes, folder: Path) -> AsyncIterator[Stand]:
    """Everything started and ready, stopped in every case. Raises StandError."""
    made = Stand(net, sizes, folder)
    try:
        await made.start_all()
        yield made
    finally:
        await made.stop()
