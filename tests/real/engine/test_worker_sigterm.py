"""A worker's process that is told to leave finishes what runs, refuses what waits, and ends with status 0."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

from services.cli.ports import free_port

QUESTION = (
    '<passage id="1" doc="docs/a.md">A weir holds a river at its level.</passage>\nQuestion: What does a weir hold?'
)


def ask(id: str = "a", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"id": id, "tenant": "t", "deadline_ms": 30_000, "max_tokens": 64, "messages": messages, **fields}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def status(client: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/status")).json()
    return found


async def holds(client: httpx2.AsyncClient, **counts: int) -> bool:
    found = await status(client)
    return all(found[name] == count for name, count in counts.items())


def test_sigterm_finishes_what_runs_refuses_what_waits_and_exits_with_0():
    async def main() -> None:
        port, metrics_port = free_port(), free_port()
        chosen = {"WORKER_PORT": port, "METRICS_PORT": metrics_port, "MAX_BATCH_SIZE": 1, "SIM_TIME_SCALE": 0.5}
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.worker", env={**os.environ, **{k: str(v) for k, v in chosen.items()}},
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                await until(lambda: is_up(client))
                runs = asyncio.create_task(client.post("/generate", json=ask("a", max_tokens=256, ignore_eos=True)))
                await until(lambda: holds(client, running=1))
                waits = asyncio.create_task(client.post("/generate", json=ask("b")))
                await until(lambda: holds(client, waiting=1))
                worker.send_signal(signal.SIGTERM)
                refused, answered = await waits, await runs
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert json.loads(answered.text.splitlines()[-1])["usage"]["completion_tokens"] == 256
            assert await asyncio.wait_for(worker.wait(), 20) == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()

    asyncio.run(main())


async def is_up(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health/ready")).status_code == 200
    except httpx2.TransportError:
        return False
