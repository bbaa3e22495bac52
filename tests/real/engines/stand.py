"""An inference server as a process, and a router before it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil

from loadtests.cluster.processes import Process, family, free_ports, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL, Server, key_of, service, tenants_yaml
from loadtests.paths import ROOT
from tests.real.engines.table import MODEL, Engine

START_WITHIN_S = 300.0  # transformers compiles nothing, but imports torch; machines are shared
UNTIL_S = 60.0
NICE = ["nice", "-n", "5"]


async def until(condition: Callable[[], bool], within_s: float = UNTIL_S) -> None:
    """Wait for a condition of another process. One that does not answer now may do so later."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with suppress(OSError):
            if condition():
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the condition never came true")


def make_model(engine: Engine, folder: Path) -> None:
    """The model that the engine loads, made by its own environment, which has the libraries for it."""
    target = folder / engine.model
    if target.exists():
        return
    program = engine.program()
    assert program is not None
    writer = "tinygguf.py" if engine.model.endswith(".gguf") else "tinymodel.py"
    words = [str(program.with_name("python")), str(Path(__file__).with_name(writer)), str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run(words, env=environment, check=True, timeout=300)


class EngineStand:
    """The server. Its port stays when it is started again."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        program = engine.program()
        assert program is not None
        words = [*NICE, str(program), *engine.arguments(self.port)]
        self.process = Process(engine.name, words, dict(engine.environment), folder)

    async def start(self) -> None:
        self.process.start()
        await until_ready(self.process, self.url + self.engine.health, START_WITHIN_S)

    def kill(self) -> None:
        """SIGKILL, the processes that it started as well."""
        for pid in reversed(family(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """The server is stopped, with the processes that it started, and goes on afterwards."""
        pids = family(self.process.pid)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Processor time of the server so far."""
        spent = 0.0
        for pid in family(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                spent += times.user + times.system
        return spent

    async def idle_after_s(self, within_s: float) -> float | None:
        """Seconds until the server computes nothing any more; None if it still does after `within_s`."""
        began = time.monotonic()
        while (now := time.monotonic()) - began < within_s:
            before = self.cpu_s()
            await asyncio.sleep(0.5)
            if self.cpu_s() - before < 0.1:
                return now - began
        return None


class RouterStand:
    """The router, and a client of it."""

    def __init__(self, server: Server, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.client = client

    def worker(self) -> dict[str, Any]:
        """The worker's entry in /admin/state."""
        found: dict[str, Any] = self.server.state()["workers"][0]
        return found

    async def healthy(self) -> None:
        await until(lambda: bool(self.worker()["healthy"]), START_WITHIN_S)


@asynccontextmanager
async def router_before(
    stand: EngineStand, folder: Path, slots: str = "", *, may_be_cut: frozenset[str] = frozenset()
) -> AsyncIterator[RouterStand]:
    entry = stand.engine.entry(stand.port)
    if slots:
        entry = entry.replace(f"slots: {stand.engine.slots}", f"slots: {slots}")
    (folder / "workers.yaml").write_text("workers:\n" + entry, encoding="utf-8")
    (folder / "tenants.yaml").write_text(tenants_yaml(("t",), may_be_cut), encoding="utf-8")
    settings = {
        "WORKERS_FILE": str(folder / "workers.yaml"), "TENANTS_FILE": str(folder / "tenants.yaml"),
        "RETRIEVAL_URL": NO_RETRIEVAL, "PROBE_INTERVAL_S": "0.2",
    }  # fmt: skip
    port, metrics_port = free_ports(2)
    server = service("router", "services.router", "router", (port, metrics_port), settings, folder)
    server.process.start()
    try:
        await until_ready(server.process, f"{server.url}/health/ready")
        async with client_of(f"{server.url}/v1") as client:
            made = RouterStand(server, client)
            await made.healthy()
            yield made
    finally:
        await server.process.stop()


def client_of(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key_of('t')}"}, timeout=120)


async def events(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; the last one is the text `[DONE]` if the stream had it."""
    found: list[Any] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                data = line[5:].strip()
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


def long_answer(tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello there", "max_tokens": tokens, "temperature": 0}
