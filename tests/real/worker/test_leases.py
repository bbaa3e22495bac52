"""A worker's process lends its slots over real sockets: asks, a stream of grants, and grants in answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx2
import pytest

from services.cli.ports import free_port

NUMBERS = count(1)
TTL_MS = 3000


def ask(router: str, wants: int = 0, **fields: Any) -> dict[str, Any]:
    wanted = [{"class_name": "default", "requests": wants, "light": 0, "level": 0.0, "turn": 0.0}] if wants else []
    return {"router": router, "stamp": [1, next(NUMBERS)], "ack": [0, 0], "wants": wanted, "ttl_ms": TTL_MS, **fields}


def work(id: str, **fields: Any) -> dict[str, Any]:
    return {"id": id, "tenant": "t", "deadline_ms": 30_000, "max_tokens": 4, "prompt": "What is a weir?", **fields}


@asynccontextmanager
async def a_worker() -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx2.AsyncClient]]:
    port, metrics_port = free_port(), free_port()
    chosen = {"WORKER_PORT": port, "METRICS_PORT": metrics_port, "MAX_BATCH_SIZE": 1, "SIM_TIME_SCALE": 0.2}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker", env={**os.environ, **{k: str(v) for k, v in chosen.items()}},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            await until(lambda: is_up(client))
            yield worker, client
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


async def is_up(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health/ready")).status_code == 200
    except httpx2.TransportError:
        return False


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def asks(client: httpx2.AsyncClient, router: str, wants: int = 0, **fields: Any) -> dict[str, Any]:
    grant: dict[str, Any] = (await client.post("/lease", json=ask(router, wants, **fields))).json()
    return grant


async def next_grant(lines: AsyncIterator[str]) -> dict[str, Any]:
    async with asyncio.timeout(20):
        found: dict[str, Any] = json.loads(await anext(lines))
        return found


@pytest.mark.parametrize("stream", [True, False])
def test_a_slot_goes_from_router_to_router_and_the_last_answer_carries_the_grant(stream: bool) -> None:
    async def main() -> None:
        async with a_worker() as (_, client):
            async with (
                client.stream("GET", "/lease/a?epoch=1") as first,
                client.stream("GET", "/lease/b?epoch=1") as second,
            ):
                assert (first.status_code, second.status_code) == (200, 200)
                others = second.aiter_lines()
                assert (await asks(client, "a", 1))["may"] == 1
                answer = asyncio.create_task(
                    client.post("/generate", json=work("r", stream=stream, lease=ask("a"), max_tokens=100))
                )
                await until(lambda: runs(client, 1))
                assert (await asks(client, "b", 1))["may"] == 0
                refused = await client.post("/generate", json=work("q", lease=ask("b", 1)))
                assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (429, "no_lease")
                done = json.loads((await answer).text.splitlines()[-1])
                assert (done["event"], done["lease"]["may"]) == ("done", 0)
                assert (await next_grant(others))["may"] == 1
                done = json.loads(
                    (await client.post("/generate", json=work("s", stream=stream, lease=ask("b")))).text.splitlines()[-1]
                )
                assert (done["event"], done["lease"]["may"]) == ("done", 1)

    asyncio.run(main())


async def runs(client: httpx2.AsyncClient, n: int) -> bool:
    return bool((await client.get("/status")).json()["running"] == n)


def test_a_router_that_is_gone_frees_its_slots_at_once_and_a_worker_that_leaves_ends_the_streams() -> None:
    async def main() -> None:
        async with a_worker() as (worker, client):
            async with client.stream("GET", "/lease/b?epoch=1") as stream:
                grants = stream.aiter_lines()
                async with httpx2.AsyncClient(base_url=client.base_url) as gone:
                    async with gone.stream("GET", "/lease/a?epoch=1"):
                        assert (await asks(client, "a", 1))["may"] == 1
                        assert (await asks(client, "b", 1))["may"] == 0
                assert (await next_grant(grants))["may"] == 1
                worker.send_signal(signal.SIGTERM)
                rest = [json.loads(line) async for line in grants]
                assert [(grant["may"], grant["slots"]) for grant in rest] in ([], [(1, 0)])
            assert await asyncio.wait_for(worker.wait(), 20) == 0

    asyncio.run(main())
