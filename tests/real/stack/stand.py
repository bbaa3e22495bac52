"""A whole stack of real processes on loopback, whose parts can be killed, frozen and started again one by one.

    client -> router -> worker-0, worker-1
                     -> retrieval -> PostgreSQL, Valkey

Each part is `python -m services.<name>` with its settings in the environment, as in a container. It keeps its port and
its log over its lives. Nothing here waits for a time to pass: `until` and `soon` wait for what is to happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
from prometheus_client.parser import text_string_to_metric_families

from loadtests.cluster.processes import frozen
from loadtests.cluster.steadyports import steady_ports
from services.cli.child import dies_with_parent
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

ROOT = Path(__file__).parents[3]
WITHIN_S = 30.0  # a safety net: what is waited for takes a second or two
DATABASE = "weir_stand"
MODEL = "weir-sim"
CACHE_MB = 64
LOCK = """# The lock of Greenfield

The lock-keeper of Greenfield opens the upper gate at half past six in the morning, and never on a Sunday.

## The toll

A barge pays a toll of four pence at the lock of Greenfield, and a rowing boat pays nothing.
"""
MILL = "# The mill\n\nThe mill below the weir grinds barley while the water is high.\n"
WORKER_SETTINGS = {
    "SIM_TIME_SCALE": "0.1",  # 2 ms a token
    "MAX_BATCH_SIZE": "4",
    "WORKER_QUEUE_SIZE": "16",
    "DRAIN_TIMEOUT_S": "2",
}
RETRIEVAL_SETTINGS = {
    "RETRIEVAL_BUDGET_MS": "3000",  # what is tested is what is found, not how fast a busy machine finds it
    "REDIS_TIMEOUT_MS": "500",
    "POSTGRES_CONNECT_TIMEOUT_S": "1",
}
ROUTER_SETTINGS = {"PROBE_INTERVAL_S": "0.2", "RETRIEVAL_BUDGET_MS": "3000"}


def until(condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """Wait until it is so; give up, loudly, after a while."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


async def soon(condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """`until`, while other tasks go on."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Part:
    """One service as a process: settings in, a port, a log."""

    name: str
    service: str
    folder: Path
    settings: dict[str, str]
    http: httpx2.Client
    port: int
    metrics_port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self) -> None:
        tree = "loadtests" if self.service == "storm" else "services"
        own = {f"{self.service.upper()}_PORT": str(self.port), "METRICS_PORT": str(self.metrics_port)}
        inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LOG_LEVEL": "DEBUG"}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{tree}.{self.service}"],
                cwd=self.folder,  # a developer's .env is not read
                env={**inherited, **self.settings, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WITHIN_S)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        assert self.process is not None
        self.process.terminate()

    def exit_code(self) -> int:
        assert self.process is not None
        return self.process.wait(WITHIN_S)

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return frozen(self.pid)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /health/ready; (0, {}) where nobody answers."""
        assert self.running, f"{self.name} has ended:\n{self.log.read_text()[-2000:]}"
        with contextlib.suppress(httpx2.TransportError, ValueError):
            answer = self.http.get(f"{self.url}/health/ready")
            return answer.status_code, answer.json()
        return 0, {}

    def ready(self) -> bool:
        return self.health()[0] == 200

    def degraded(self) -> list[str]:
        """What it says it lacks."""
        missing: list[str] = self.health()[1].get("degraded", [])
        return missing

    def metrics(self, name: str, by: str = "") -> dict[str, float]:
        """A metric's samples, added up by the value of one label."""
        text = self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text
        found: dict[str, float] = {}
        for sample in itertools.chain.from_iterable(one.samples for one in text_string_to_metric_families(text)):
            if sample.name == name and sample.value:
                key = sample.labels.get(by, "")
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def metric(self, name: str) -> float:
        return sum(self.metrics(name).values())

    def records(self) -> list[dict[str, Any]]:
        """Its log, line by line, as far as lines are whole."""
        return [json.loads(line) for line in self.log.read_text().rpartition("\n")[0].splitlines()]


@contextlib.contextmanager
def spawned(parts: Sequence[Part]) -> Iterator[None]:
    """All of them are ready within the block, and gone after it."""
    try:
        for part in parts:
            part.spawn()
        until(lambda: all(part.ready() for part in parts), f"{', '.join(part.name for part in parts)} are ready")
        yield
    finally:
        for part in parts:
            if part.running:
                part.kill()


@contextlib.contextmanager
def sharing_routers(folder: Path, names: Sequence[str], exchange_url: str) -> Iterator[tuple[list[Part], list[Part]]]:
    """(routers of these names, two workers that they share)."""
    with contextlib.closing(steady_ports()) as ports, httpx2.Client(timeout=WITHIN_S, trust_env=False) as http:
        workers = [
            Part(name, "worker", folder, {**WORKER_SETTINGS, "WORKER_NAME": name}, http, next(ports), next(ports))
            for name in ("worker-0", "worker-1")
        ]
        shared = {
            **ROUTER_SETTINGS,
            "WORKERS": ",".join(worker.url for worker in workers),
            "EXCHANGE_URL": exchange_url,
        }
        routers = [
            Part(name, "router", folder, {**shared, "ROUTER_NAME": name}, http, next(ports), next(ports))
            for name in names
        ]
        with spawned([*workers, *routers]):
            yield routers, workers


class Stand:
    """The stack, and the questions that tests put to it."""

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, redis: EmbeddedValkey) -> None:
        self.folder = folder
        self.postgres = postgres
        self.redis = redis
        no_reuse = httpx2.Limits(max_keepalive_connections=0)  # what is asked of a part is asked of its present life
        self.http = httpx2.Client(timeout=WITHIN_S, limits=no_reuse, trust_env=False)
        self.ports = steady_ports()
        self.workers = [
            self._part(name, "worker", {**WORKER_SETTINGS, "WORKER_NAME": name}) for name in ("worker-0", "worker-1")
        ]
        database_url = postgres.url.rsplit("/", 1)[0] + f"/{DATABASE}"
        stores = {"POSTGRES_URL": database_url, "REDIS_URL": redis.url}
        self.retrieval = self._part("retrieval", "retrieval", {**stores, **RETRIEVAL_SETTINGS})
        self.router = self._router("router")
        self.numbers = itertools.count(1)

    @property
    def parts(self) -> list[Part]:
        return [*self.workers, self.retrieval, self.router]

    def _part(self, name: str, service: str, settings: dict[str, str]) -> Part:
        return Part(name, service, self.folder, settings, self.http, next(self.ports), next(self.ports))

    def _router(self, name: str, **settings: str) -> Part:
        peers = {"WORKERS": ",".join(worker.url for worker in self.workers), "RETRIEVAL_URL": self.retrieval.url}
        return self._part(name, "router", {**peers, **ROUTER_SETTINGS, **settings})

    # Standing

    def start(self) -> None:
        asyncio.run(_create_database(self.postgres.url))
        corpus = self.folder / "corpus"
        corpus.mkdir()
        (corpus / "lock.md").write_text(LOCK)
        (corpus / "mill.md").write_text(MILL)
        for part in (*self.workers, self.router):
            part.spawn()
        words = [sys.executable, "-m", "services.retrieval.ingest", str(corpus)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **self.retrieval.settings}
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        self.restore()

    def restore(self) -> None:
        """Whatever a test has broken stands again."""
        if not self.postgres.running:
            self.postgres.start()
        if not self.redis.running:
            self.redis.start()
        self.set_redis_memory(f"{CACHE_MB}mb", "allkeys-lru")
        for part in self.parts:
            if not part.running:
                part.spawn()
        self.until_whole()

    def stop(self) -> None:
        for part in self.parts:
            if part.running:
                part.terminate()
        for part in self.parts:
            if part.process is not None:
                try:
                    part.exit_code()
                except subprocess.TimeoutExpired:
                    part.kill()
        self.http.close()
        self.ports.close()

    def whole(self, router: Part | None = None) -> bool:
        """Every worker up, and nothing lacking."""
        status, body = (router or self.router).health()
        return status == 200 and len(body["workers"]) == len(self.workers) and body["degraded"] == []

    def until_whole(self) -> None:
        for part in self.parts:
            until(part.ready, f"{part.name} is ready")
        until(self.whole, "the stack is whole")
        until(lambda: self.router.metric("weir_inflight") == 0, "nobody is being served")

    @contextlib.contextmanager
    def another_router(self, name: str, **settings: str) -> Iterator[Part]:
        """A second router over the same workers and retrieval, with settings and counters of its own."""
        router = self._router(name, **settings)
        router.spawn()
        try:
            until(lambda: self.whole(router), f"{name} is up")
            yield router
        finally:
            if router.running:
                router.kill()

    def set_redis_memory(self, most: str, policy: str) -> None:
        assert self.redis.command(f"CONFIG SET maxmemory-policy {policy}") == "+OK"
        assert self.redis.command(f"CONFIG SET maxmemory {most}") == "+OK"

    def faults(self) -> list[str]:
        """What the parts logged that should never happen: errors, tracebacks, lines that are not JSON."""
        return [
            f"{file.name}: {line}"
            for file in sorted(self.folder.glob("*.log"))
            for line in file.read_text().splitlines()
            if not line.startswith("{") or '"level":"ERROR"' in line
        ]

    # Asking

    def question(self) -> str:
        """One that no cache knows."""
        return f"When does the lock-keeper of Greenfield open the upper gate for boat number {next(self.numbers)}?"

    def ask(self, query: str | None = None, **fields: Any) -> dict[str, Any]:
        """POST /ask, which is to be answered with 200."""
        body = {"query": query or self.question(), "max_tokens": 40, **fields}
        reply = self.http.post(f"{self.router.url}/ask", json=body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    def source(self, query: str | None = None, **fields: Any) -> str:
        """Where the passages of an answer came from."""
        return str(self.ask(query, **fields)["retrieval_source"])

    def client(self, router: Part | None = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=(router or self.router).url, timeout=WITHIN_S, trust_env=False)


@dataclass
class Told:
    """What a client was told: the status, why it was refused or cut, how many tokens it got, whether that was all."""

    status: int
    code: str | None = None
    deltas: int = 0
    whole: bool = False
    headers: httpx2.Headers = field(default_factory=httpx2.Headers)

    @property
    def served(self) -> bool:
        return self.status == 200 and self.whole and self.code is None


async def chat(
    client: httpx2.AsyncClient,
    tokens: int = 40,
    *,
    stream: bool = False,
    leave: bool = False,
    headers: dict[str, str] | None = None,
    on_first: Callable[[], object] = lambda: None,
    **fields: Any,
) -> Told:
    """A chat answer of so many tokens, read to its end; with `leave`, dropped after its first token."""
    body = {"messages": [{"role": "user", "content": "What is a weir?"}], "max_tokens": tokens, "ignore_eos": True}
    body |= {"stream": stream, **fields}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        told = Told(response.status_code, headers=response.headers)
        if response.status_code != 200 or not stream:
            answer = json.loads(await response.aread())
            told.code = answer["error"]["code"] if "error" in answer else None
            cut = "max_tokens" in response.headers.get("x-weir-degraded", "")  # and said so
            told.whole = told.code is None and (cut or answer["usage"]["completion_tokens"] == tokens)
            return told
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                told.whole = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                told.code = event["error"]["code"] if "error" in event else told.code
                if event.get("choices") and event["choices"][0]["delta"].get("content"):
                    told.deltas += 1
                    on_first()
                    if leave:
                        break
    return told


async def _create_database(url: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()
