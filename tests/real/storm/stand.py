"""A storm bench as a process of its own before a router that does as the test says, and workers that take faults."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from services.cli.child import dies_with_parent
from services.cli.ports import free_port
from services.runtime.http import Exchange, Handler
from services.runtime.serve import running
from services.worker.app import build as build_worker
from services.worker.config import WorkerSettings
from tests.runtime.rig import build as build_service

ROOT = Path(__file__).parents[3]
WRITE = {"x-weir-console": "1"}


@dataclass
class FakeRouter:
    """Takes whatever comes, answers after a while or never, and keeps count."""

    takes_s: float = 0.01
    hangs: bool = False
    status: int = 200
    sent: list[tuple[str, str]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    port: int = 0

    def routes(self) -> dict[tuple[str, str], Handler]:
        return {("POST", "/v1/chat/completions"): self.answer, ("POST", "/ask"): self.answer}

    async def answer(self, exchange: Exchange) -> None:
        named = [(exchange.header(name) or b"").decode() for name in (b"x-tenant", b"x-weir-deadline-ms")]
        self.sent.append((named[0], named[1]))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        task = asyncio.current_task()
        assert task is not None
        exchange.on_gone(task.cancel)
        try:
            await asyncio.sleep(3600 if self.hangs else self.takes_s)
            body = b'{"text":"so"}' if self.status == 200 else b'{"error":{"code":"yield"}}'
            await exchange.reply(self.status, body)
        finally:
            self.under_way -= 1


@dataclass
class Stand:
    """The bench's process, and what it was given."""

    router: FakeRouter
    fault_urls: list[str]
    process: subprocess.Popen[bytes]
    client: httpx2.AsyncClient
    log: Path
    begun: list[str] = field(default_factory=list)

    async def state(self) -> dict[str, Any]:
        state: dict[str, Any] = (await self.client.get("/storm")).json()
        return state

    async def running(self) -> dict[str, Any] | None:
        return (await self.state())["running"]

    async def start(self, scenario: str, **sliders: float) -> str:
        reply = await self.client.post("/storm", json={"scenario": scenario, "sliders": sliders}, headers=WRITE)
        assert reply.status_code == 202, reply.text
        run: str = reply.json()["run"]
        self.begun.append(run)
        return run

    async def whole_run(self, scenario: str, **sliders: float) -> dict[str, Any]:
        """What is told of a run from its beginning to its end, in which the machine did not stand still for long.

        The bench asks the router for its figures but for a moment, and clients that are held up leave late: then it
        plays again, a few times.
        """
        for _ in range(5):
            self.router.sent.clear()
            told = await self._whole_run(scenario, **sliders)
            if told["wasted_s"] is not None and (not told["gone"] or sliders.get("leaving")):
                break
        return told

    async def _whole_run(self, scenario: str, **sliders: float) -> dict[str, Any]:
        id = await self.start(scenario, **sliders)
        await self.until_over()
        return await self.run(id)

    async def stop(self) -> str | None:
        return (await self.client.delete("/storm", headers=WRITE)).json()["stopped"]

    async def until_over(self) -> None:
        await eventually(lambda: self._is_over(), 60)

    async def _is_over(self) -> bool:
        return await self.running() is None

    async def run(self, id: str) -> dict[str, Any]:
        run: dict[str, Any] = (await self.client.get("/storm/run", params={"run": id})).json()
        return run

    async def slow_factors(self) -> list[float]:
        async with httpx2.AsyncClient() as client:
            return [(await client.get(f"{url}/faults")).json()["slow_factor"] for url in self.fault_urls]

    async def slowed(self) -> bool:
        return max(await self.slow_factors()) > 1

    async def healed(self) -> bool:
        return max(await self.slow_factors()) == 1

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


async def eventually(condition: Callable[[], Awaitable[bool]], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def standing(folder: Path, router: FakeRouter, *, workers: int = 2, **settings: Any) -> AsyncIterator[Stand]:
    async with AsyncExitStack() as stack:
        front = build_service(router.routes(), drain_timeout_s=0.2)
        await stack.enter_async_context(running(front))
        stack.callback(front.log.close)
        router.port = front.bound_port
        fault_urls, worker_urls = [], []
        for number in range(workers):
            worker = build_worker(
                WorkerSettings(
                    _env_file=None,  # type: ignore[call-arg]
                    worker_port=0, metrics_port=0, worker_name=f"worker-{number}", log_level="ERROR",
                )
            )  # fmt: skip
            await stack.enter_async_context(running(worker))
            stack.callback(worker.log.close)
            fault_urls.append(f"http://127.0.0.1:{worker.bound_metrics_port}")
            worker_urls.append(f"http://127.0.0.1:{worker.bound_port}")
        port = free_port()
        own = {
            "STORM_PORT": port,
            "METRICS_PORT": 0,
            "STORM_ROUTER_URL": f"http://127.0.0.1:{router.port}",
            "STORM_METRICS_URL": f"http://127.0.0.1:{front.bound_metrics_port}",
            "STORM_FAULT_URLS": ",".join(fault_urls) or "none",
            "WORKERS": ",".join(worker_urls),
            **settings,
        }
        process = spawned(folder, own)
        stack.callback(ended, process)
        client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        await stack.enter_async_context(client)
        stand = Stand(router, fault_urls, process, client, folder / "storm.log")
        await eventually(lambda: _answers(stand))
        yield stand


async def _answers(stand: Stand) -> bool:
    assert stand.process.poll() is None, stand.log.read_text()
    try:
        return (await stand.client.get("/health/ready")).status_code == 200
    except httpx2.TransportError:
        return False


def spawned(folder: Path, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """`python -m loadtests.storm`, as `weir up` starts it."""
    given = {name: str(value) for name, value in settings.items()}
    with (folder / "storm.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "loadtests.storm"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **given},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with_parent(signal.SIGKILL),
        )


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait(20)


def run(main: Callable[[], Awaitable[None]], within_s: float = 90.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(within_s):
            await main()

    asyncio.run(bounded())
