"""A stack's parts: their ports, settings and addresses of one another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from loadtests.cluster.parts import Store
from loadtests.cluster.processes import Process, python
from loadtests.cluster.stand import HOST, NO_RETRIEVAL, Server, service, tenants_yaml
from loadtests.faults.wires import Wire
from loadtests.paths import ROOT
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

POSTGRES, VALKEY, CLIENTS = "PostgreSQL", "Valkey", "clients"
CHAT, ASK = "chat", "ask"
"""The tenants, each with a key; `ask` has documents."""
MODEL = "weir-sim"
SLOTS = 8
EVIL_SLOTS = 4
CACHE_MB = 16
CACHE_TTL_S = 5
RETRIEVAL_SETTINGS = {
    "CACHE_TTL_S": str(CACHE_TTL_S),
    "STALE_TTL_S": "60",
    "POSTGRES_CONNECT_TIMEOUT_S": "1",
}
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Shape:
    """The contents of a stack. `wires`: a fault proxy before each part. `stores`: retrieval and its stores.

    `evil`: kinds of byzantine workers that the router knows but that are not started.
    """

    workers: int = 3
    step_ms: float = 6.0
    silence_s: float = 1.0
    wires: bool = True
    stores: bool = True
    evil: Sequence[str] = ()


class Making:
    """Makes each part once. Stores come first: their addresses contain passwords generated at their start."""

    def __init__(self, folder: Path, ports: Iterator[int], shape: Shape) -> None:
        self.wires: dict[str, Wire] = {}
        self._folder = folder
        self._ports = ports
        self._shape = shape

    def stores(self) -> list[Store]:
        """PostgreSQL and Valkey, or none."""
        if not self._shape.stores:
            return []
        folder, ports = self._folder, self._ports
        postgres = EmbeddedPostgres(folder / "postgres", next(ports), log=folder / "postgres.log", durable=False)
        valkey = EmbeddedValkey(folder / "valkey", next(ports), log=folder / "valkey.log", max_memory_mb=CACHE_MB)
        return [Store(POSTGRES, postgres), Store(VALKEY, valkey)]

    def workers(self) -> list[Server]:
        settings = {
            "MAX_BATCH_SIZE": str(SLOTS), "SIM_STEP_MS": f"{self._shape.step_ms:g}", "SIM_STEP_PER_SEQUENCE_MS": "0",
            "SIM_PREFILL_MS_PER_TOKEN": "0", "SIM_JITTER": "0.2",
        }  # fmt: skip
        names = [f"worker-{number}" for number in range(self._shape.workers)]
        return [self._service(name, "worker", {**settings, "WORKER_NAME": name}) for name in names]

    def evil(self) -> list[Server]:
        """Workers that answer half of their requests with a trick."""
        found = []
        for kind in self._shape.evil:
            port = next(self._ports)
            words = ("--kind", kind, "--port", str(port), "--model", MODEL, "--slots", str(EVIL_SLOTS))
            found.append(self.server(f"evil-{kind}", python("-m", "loadtests.faults.evil", *words), port))
        return found

    def retrieval(self, stores: Sequence[Store], settings: Mapping[str, str] = RETRIEVAL_SETTINGS) -> Server:
        urls = [self._wire(store.name, store.server.url) for store in stores]
        return self._service("retrieval", "retrieval", {**settings, "POSTGRES_URL": urls[0], "REDIS_URL": urls[1]})

    def router(self, workers: Sequence[Server], evil: Sequence[Server], retrieval: Server | None) -> Server:
        """The router, with wires to its peers and from the clients."""
        entries = [_entry(one.process.name, self._wire(one.process.name, one.url)) for one in workers]
        entries += [_entry(one.process.name, one.url) for one in evil]
        retrieval_url = NO_RETRIEVAL if retrieval is None else self._wire("retrieval", retrieval.url)
        silence = {"STREAM_SILENCE_S": f"{self._shape.silence_s:g}"}
        router = self.router_before(entries, {**silence, "RETRIEVAL_URL": retrieval_url})
        self._wire(CLIENTS, router.url)
        return router

    def router_before(self, entries: Sequence[Mapping[str, object]], settings: Mapping[str, str]) -> Server:
        """A router with these workers and the tenants."""
        workers, tenants = self._folder / "workers.yaml", self._folder / "tenants.yaml"
        workers.write_text(json.dumps({"workers": list(entries)}), encoding="utf-8")  # JSON is YAML
        tenants.write_text(tenants_yaml([CHAT, ASK]), encoding="utf-8")
        peers = {"WORKERS_FILE": str(workers), "TENANTS_FILE": str(tenants), "PROBE_INTERVAL_S": "0.25"}
        return self._service("router", "router", {**peers, **settings})

    def server(self, name: str, command: Sequence[str], port: int, settings: Mapping[str, str] = NO_SETTINGS) -> Server:
        """A process with a listening port."""
        process = Process(name, command, {"PYTHONPATH": str(ROOT), **settings}, self._folder)
        return Server(process, f"http://{HOST}:{port}")

    def _service(self, name: str, kind: str, settings: Mapping[str, str]) -> Server:
        ports = next(self._ports), next(self._ports)
        return service(name, f"services.{kind}", kind, ports, settings, self._folder)

    def _wire(self, name: str, url: str) -> str:
        """The address of a new wire before `url`, if the stack has wires."""
        if not self._shape.wires:
            return url
        port = urlsplit(url).port or 0
        self.wires[name] = Wire(name, port, self._ports, self._folder)
        return url.replace(f"{HOST}:{port}", f"{HOST}:{self.wires[name].port}")


def _entry(name: str, url: str) -> dict[str, object]:
    if name == "evil-openai":
        return {"name": name, "kind": "openai", "url": f"{url}/v1", "slots": EVIL_SLOTS, "models": [MODEL]}
    return {"name": name, "kind": "weir", "url": url}
