"""A worker's process lends its slots over real sockets: asks, a stream of grants, and grants in answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import httpx2
import pytest

from services.cli.ports import free_port

TTL_MS = 3000


class Router:
    """One process of a router: each ask has a higher stamp and acknowledges the last grant that it was given."""

    def __init__(self, name: str, client: httpx2.AsyncClient) -> None:
        self.name = name
        self.ack = [0, 0]
        self._client = client
        self._numbers = count(1)

    def ask(self, wants: int = 0) -> dict[str, Any]:
        wanted = [{"class_name": "default", "requests": wants, "light": 0, "level": 0.0, "turn": 0.0}] if wants else []
        stamp = [1, next(self._numbers)]
        return {"router": self.name, "stamp": stamp, "ack": self.ack, "wants": wanted, "ttl_ms": TTL_MS}

    async def asks(self, wants: int = 0) -> int:
        """It asks alone. Returns what it may use."""
        grant = (await self._client.post("/lease", json=self.ask(wants))).json()
        self.ack = max(self.ack, grant["stamp"])
        may: int = grant["may"]
        return may

    @asynccontextmanager
    async def refreshing(self, wants: int) -> AsyncIterator[None]:
        """Meanwhile it asks for that many slots, again and again."""

        async def again() -> None:
            while True:
                await self.asks(wants)
                await asyncio.sleep(0.05)

        task = asyncio.create_task(again())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def generates(self, id: str, *, wants: int = 0, **fields: Any) -> httpx2.Response:
        body = {
            "id": id, "tenant": "t", "deadline_ms": 30_000, "max_tokens": 4, "prompt": "What is a weir?",
            "ignore_eos": True, "lease": self.ask(wants), **fields,
        }  # fmt: skip
        return await self._client.post("/generate", json=body)


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


async def runs(client: httpx2.AsyncClient, n: int) -> bool:
    return bool((await client.get("/status")).json()["running"] == n)


async def next_grant(lines: AsyncIterator[str]) -> dict[str, Any]:
    async with asyncio.timeout(20):
        found: dict[str, Any] = json.loads(await anext(lines))
        return found


def last_event(reply: httpx2.Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.text.splitlines()[-1])
    return found


@pytest.mark.parametrize("stream", [True, False])
def test_a_slot_goes_from_router_to_router_and_answers_carry_grants(stream: bool) -> None:
    async def main() -> None:
        async with (
            a_worker() as (_, client),
            client.stream("GET", "/lease/a?epoch=1") as first,
            client.stream("GET", "/lease/b?epoch=1") as second,
        ):
            assert (first.status_code, second.status_code) == (200, 200)
            holder, other, others = Router("a", client), Router("b", client), second.aiter_lines()
            assert await holder.asks(1) == 1
            async with holder.refreshing(0):
                answer = asyncio.create_task(holder.generates("r", stream=stream, max_tokens=100))
                await until(lambda: runs(client, 1))
                assert await other.asks(1) == 0
                refused = await other.generates("q", wants=1)
                assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (429, "no_lease")
                async with other.refreshing(1):
                    done = last_event(await answer)
                    assert (done["event"], done["lease"]["may"]) == ("done", 0)
                    assert (await next_grant(others))["may"] == 1
                done = last_event(await other.generates("s", stream=stream))
                assert (done["event"], done["lease"]["may"]) == ("done", 1)

    asyncio.run(main())


def test_a_router_that_is_gone_frees_its_slots_at_once_and_a_worker_that_leaves_ends_the_streams() -> None:
    async def main() -> None:
        async with a_worker() as (worker, client):
            async with client.stream("GET", "/lease/b?epoch=1") as stream, AsyncExitStack() as asking:
                grants, other = stream.aiter_lines(), Router("b", client)
                async with (
                    httpx2.AsyncClient(base_url=client.base_url, timeout=30) as gone,
                    gone.stream("GET", "/lease/a?epoch=1"),
                ):
                    assert await Router("a", gone).asks(1) == 1
                    assert await other.asks(1) == 0
                    await asking.enter_async_context(other.refreshing(1))
                assert (await next_grant(grants))["may"] == 1
                await asking.aclose()
                worker.send_signal(signal.SIGTERM)
                async for _ in grants:
                    pass
            assert await asyncio.wait_for(worker.wait(), 20) == 0

    asyncio.run(main())
