"""Two routers, a desk and Valkey as processes, before an OpenAI-compatible server of this one, which counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from loadtests.cluster.processes import Process, free_ports, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL, service
from loadtests.faults.evil.talk import Talk
from loadtests.faults.evil.worker import running
from services.cli.valkey import EmbeddedValkey
from tests.desk.rig import Server

WITHIN_S = 60.0


class Front(Server):
    """It counts what runs at once at the server behind it, whose address is `url`."""

    def __init__(self, slots: int, model: str, url: str, client: httpx2.AsyncClient) -> None:
        super().__init__(slots, model)
        self._url = url
        self._client = client
        self.statuses: Counter[int] = Counter()

    async def answer(self, talk: Talk) -> bytes:
        asked = {**talk.asked, "stream": False}
        asked.pop("stream_options", None)
        reply = await self._client.post(f"{self._url}/v1/chat/completions", json=asked)
        self.statuses[reply.status_code] += 1
        head = f"HTTP/1.1 {reply.status_code} -\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(reply.content)}\r\n\r\n".encode() + reply.content


class DeskStand:
    """The running processes, and what clients of both routers saw."""

    def __init__(self, server: Server, desk: Process, desk_url: str, routers: list[Process], urls: list[str]) -> None:
        self.server = server
        self.desk = desk
        self.desk_url = desk_url
        self.routers = routers
        self.urls = urls
        self.statuses: Counter[int] = Counter()
        self.model = server.worker.model

    async def start_desk(self) -> None:
        self.desk.start()
        await until_ready(self.desk, f"{self.desk_url}/health/ready")

    @asynccontextmanager
    async def flood(self, clients: int) -> AsyncIterator[None]:
        """So many clients at each router, each of which asks again at every answer."""
        async with httpx2.AsyncClient(timeout=60) as client:
            tasks = [asyncio.create_task(self._ask(client, url)) for url in self.urls for _ in range(clients)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    async def _ask(self, client: httpx2.AsyncClient, url: str) -> None:
        body: dict[str, Any] = {
            "model": self.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8,
        }  # fmt: skip
        headers = {"x-tenant": "a", "x-slo-deadline-ms": "10000"}
        while True:
            try:
                reply = await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            except httpx2.HTTPError:  # its router has been killed
                await asyncio.sleep(0.1)
                continue
            self.statuses[reply.status_code] += 1
            if reply.status_code != 200:
                await asyncio.sleep(0.1)

    async def answers(self, count: int) -> None:
        """Wait for so many answers from now on."""
        until = self.statuses[200] + count
        await within(lambda: self.statuses[200] >= until, f"{count} answers")


async def within(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, f"not in {WITHIN_S:g} s: {what}"
        await asyncio.sleep(0.02)


async def rests(server: Server) -> None:
    """Wait until nothing runs there and nothing starts, whoever asks."""
    end, begun = time.monotonic() + WITHIN_S, -1
    while server.running or server.begun != begun:
        assert time.monotonic() < end, f"requests still start at the server, {server.begun} so far"
        begun = server.begun
        await asyncio.sleep(0.5)


async def survives(stand: DeskStand) -> None:
    """Under a flood the desk is killed and started again, then a router is killed: never a request too many."""
    server = stand.server
    async with stand.flood(clients=4):
        await stand.answers(20)
        stand.desk.kill()
        await rests(server)
        await stand.start_desk()
        await stand.answers(20)
        stand.routers[0].kill()
        await stand.answers(20)
    assert server.highest == server.slots, f"{server.highest} ran at once, on {server.slots} slots"


@asynccontextmanager
async def desk_stand(folder: Path, server: Server, *, hold_s: float = 10.0) -> AsyncIterator[DeskStand]:
    """Ready when both routers are."""
    ports = free_ports(7)
    valkey = EmbeddedValkey(folder / "valkey", ports[6], log=folder / "valkey.log")
    valkey.start()
    chosen = {"DESK_SERVERS": f"server-a={server.slots}", "DESK_HOLD_S": f"{hold_s:g}"}
    desk = service("desk", "services.desk", "desk", (ports[0], ports[1]), chosen, folder)
    routers: list[Process] = []
    async with running(server.worker):
        file = folder / "workers.yaml"
        file.write_text(
            f'workers:\n  - {{name: server-a, kind: openai, url: "{server.worker.url}", metrics: false, '
            f'desk: "{desk.url}/server-a"}}\n',
            encoding="utf-8",
        )
        urls = []
        for number in range(2):
            settings = {
                "WORKERS_FILE": str(file), "EXCHANGE_URL": valkey.url, "ROUTER_NAME": f"r{number}",
                "RETRIEVAL_URL": NO_RETRIEVAL,
            }  # fmt: skip
            found = (ports[2 + 2 * number], ports[3 + 2 * number])
            made = service(f"router-{number}", "services.router", "router", found, settings, folder)
            routers.append(made.process)
            urls.append(made.url)
        stand = DeskStand(server, desk.process, desk.url, routers, urls)
        try:
            await stand.start_desk()
            for router, url in zip(routers, urls, strict=True):
                router.start()
                await until_ready(router, f"{url}/health/ready")
            yield stand
        finally:
            for process in [*routers, desk.process]:
                await process.stop()
            valkey.stop()
