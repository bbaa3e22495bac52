"""A stand on paper: who listens where, with which settings, and who is told of whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, python
from loadtests.cluster.stand import Server, tenants_yaml
from loadtests.cluster.steadyports import HOST
from loadtests.faults.wires import Wire
from loadtests.paths import ROOT
from loadtests.runs.chaos.parts import Store
from loadtests.runs.chaos.questions import ASK, CHAT
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

POSTGRES, VALKEY = "PostgreSQL", "Valkey"
WORKERS = 3
SLOTS = 8
STEP_MS = 6.0
CACHE_MB = 16
CACHE_TTL_S = 5
SILENCE_S = 1.0
WORKER_SETTINGS = {
    "MAX_BATCH_SIZE": str(SLOTS),
    "SIM_STEP_MS": f"{STEP_MS:g}",
    "SIM_STEP_PER_SEQUENCE_MS": "0",
    "SIM_PREFILL_MS_PER_TOKEN": "0",
    "SIM_JITTER": "0.2",
}
RETRIEVAL_SETTINGS = {
    "CACHE_TTL_S": str(CACHE_TTL_S),
    "STALE_TTL_S": "60",
    "POSTGRES_CONNECT_TIMEOUT_S": "1",
}
ROUTER_SETTINGS = {"PROBE_INTERVAL_S": "0.25", "STREAM_SILENCE_S": f"{SILENCE_S:g}"}


class Making:
    """Each method is called once, in the order in which they stand here."""

    def __init__(self, folder: Path, ports: Iterator[int], wired: bool) -> None:
        self.wires: dict[str, Wire] = {}
        self._folder = folder
        self._ports = ports
        self._wired = wired
        self._postgres = EmbeddedPostgres(folder / "postgres", next(ports), log=folder / "postgres.log", durable=False)
        self._valkey = EmbeddedValkey(folder / "valkey", next(ports), log=folder / "valkey.log", max_memory_mb=CACHE_MB)

    def stores(self) -> list[Store]:
        return [Store(POSTGRES, self._postgres), Store(VALKEY, self._valkey)]

    def store_urls(self) -> tuple[str, str]:
        """Their addresses, passwords included: there are none before they have been started."""
        return self._wire(POSTGRES, self._postgres.url), self._wire(VALKEY, self._valkey.url)

    def workers(self) -> list[Server]:
        names = [f"worker-{number}" for number in range(WORKERS)]
        return [self._server(name, "worker", {**WORKER_SETTINGS, "WORKER_NAME": name}) for name in names]

    def retrieval(self, postgres_url: str, valkey_url: str) -> Server:
        stores = {"POSTGRES_URL": postgres_url, "REDIS_URL": valkey_url}
        return self._server("retrieval", "retrieval", {**RETRIEVAL_SETTINGS, **stores})

    def router(self, workers: Sequence[Server], retrieval: Server) -> Server:
        entries = [
            {"name": one.process.name, "kind": "weir", "url": self._wire(one.process.name, one.url)} for one in workers
        ]
        (self._folder / "workers.yaml").write_text(json.dumps({"workers": entries}), encoding="utf-8")  # JSON is YAML
        (self._folder / "tenants.yaml").write_text(tenants_yaml([CHAT, ASK]), encoding="utf-8")
        peers = {
            "WORKERS_FILE": str(self._folder / "workers.yaml"),
            "TENANTS_FILE": str(self._folder / "tenants.yaml"),
            "RETRIEVAL_URL": self._wire("retrieval", retrieval.url),
        }
        router = self._server("router", "router", {**ROUTER_SETTINGS, **peers})
        self._wire("clients", router.url)
        return router

    def _server(self, name: str, service: str, settings: Mapping[str, str] = MappingProxyType({})) -> Server:
        port, metrics_port = next(self._ports), next(self._ports)
        listens = {f"{service.upper()}_PORT": str(port), "METRICS_PORT": str(metrics_port)}
        environment = {"PYTHONPATH": str(ROOT), **listens, **settings}
        process = Process(name, python("-m", f"services.{service}"), environment, self._folder)
        return Server(process, f"http://{HOST}:{port}", f"http://{HOST}:{metrics_port}/metrics")

    def _wire(self, name: str, url: str) -> str:
        """The same address by way of a new wire, if there are to be any."""
        if not self._wired:
            return url
        port = urlsplit(url).port or 0
        self.wires[name] = Wire(name, port, self._ports, self._folder)
        return url.replace(f"{HOST}:{port}", f"{HOST}:{self.wires[name].port}")
