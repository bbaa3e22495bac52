"""2,400 clients that leave, at twelve stages, streamed and plain: how soon the router has given back what they held.

Three processes: these clients, the router, a worker that falls silent at the stage (`leaving_worker`). Half of the
clients close, half reset; 50 of them in the same moment. When the place of each was given back is the time of the
router's log line for it, which is written in the same turn of its event loop; so figures are to the millisecond.

Run: python -m loadtests.bench.disconnects
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from time import time
from typing import Any

import psutil
import uvloop

from loadtests.bench.machine import cores, pinned, process, rss_mb, until_ready
from loadtests.report.figure import Figure
from services.cli.ports import free_port

EACH, WAVE = 100, 50
STAGES = (
    "connect", "headers", "body", "queued", "retrieval", "dispatched", "in batch", "first token", "mid-stream",
    "last token", "after the end", "retry",
)  # fmt: skip
UNASKED = ("connect", "headers", "body")
RESET = struct.pack("ii", 1, 0)
LOG_S = 0.3  # until the log's writer has written


class Client:
    """One connection."""

    def __init__(self, id: str, stage: str, port: int) -> None:
        self.id = id
        self.stage = stage
        self.left_at = 0.0
        self._port = port
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, data)

    async def read_to_the_end(self) -> None:
        """Of one answer."""
        seen = b""
        while not _whole(seen):
            piece = await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
            if not piece:
                raise RuntimeError(f"{self.id}: the connection ended after {seen!r}")
            seen += piece

    def leave(self, *, reset: bool) -> None:
        self.left_at = time()
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._socket.close()


def _whole(seen: bytes) -> bool:
    head, _, body = seen.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def request(id: str, stage: str, *, stream: bool) -> bytes:
    """What is sent of a request at the stage."""
    ask = stage == "retrieval"
    content = {"query": stage} if ask else {"messages": [{"role": "user", "content": stage}], "max_tokens": 8}
    body = json.dumps({**content, "stream": stream}).encode()
    path = "/ask" if ask else "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\nx-request-id: {id}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    return {"connect": b"", "headers": head[: len(head) // 2], "body": head + body[:5]}.get(stage, head + body)


class Stand:
    """Where things listen, and who has been there."""

    def __init__(self) -> None:
        self.router, self.metrics, self.worker, self.other = (free_port() for _ in range(4))
        self.clients: list[Client] = []
        self._came = 0
        self._there = 0

    async def wave(self, stage: str, count: int, *, stream: bool) -> None:
        """So many, at the stage, all gone in one moment."""
        holders = [await self._come("dispatched", stream=stream) for _ in range(WAVE if stage == "queued" else 0)]
        await self._until_there(len(holders))
        clients = [await self._come(stage, stream=stream) for _ in range(count)]
        await self._until_at(stage, clients)
        for number, client in enumerate(clients):
            client.leave(reset=number % 2 == 1)
        self.clients += clients
        for client in holders:
            client.leave(reset=False)
        await until(lambda: self.sum("weir_inflight") + self.sum("weir_queue_depth") == 0)

    async def _come(self, stage: str, *, stream: bool) -> Client:
        self._came += 1
        client = Client(f"client-{self._came}", stage, self.router)
        await client.send(request(client.id, stage, stream=stream))
        return client

    async def _until_at(self, stage: str, clients: list[Client]) -> None:
        if stage == "queued":
            await until(lambda: self.sum("weir_queue_depth") == len(clients))
        elif stage == "after the end":
            await asyncio.gather(*(client.read_to_the_end() for client in clients))
        elif stage not in UNASKED:
            await self._until_there(len(clients))

    async def _until_there(self, more: int) -> None:
        self._there += more
        await until(lambda: int(get(f"http://127.0.0.1:{self.worker}/there")) >= self._there)

    def sum(self, name: str) -> float:
        """A metric of the router over all its labels."""
        text = get(f"http://127.0.0.1:{self.metrics}/metrics").decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def get(url: str) -> bytes:
    """Blocks: nothing else is to happen here meanwhile."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
        return body


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def measure(seconds: float = 0.0) -> list[Figure]:
    """All of them. `seconds` changes nothing: it is the number that counts."""
    router_core, other_core = cores()
    stand = Stand()
    env = {
        "ROUTER_PORT": str(stand.router), "METRICS_PORT": str(stand.metrics), "MAX_INFLIGHT": str(WAVE),
        "WORKERS": f"http://127.0.0.1:{stand.worker},http://127.0.0.1:{stand.other}", "RETRY_SHARE": "1",
        "RETRIEVAL_URL": f"http://127.0.0.1:{stand.worker}", "RETRIEVAL_BUDGET_MS": "30000",
        "DEFAULT_TTFT_MS": "30000",
    }  # fmt: skip
    worker = ["-m", "loadtests.bench.leaving_worker", str(stand.worker), str(stand.other)]
    with tempfile.TemporaryFile() as log, pinned(other_core):
        async with process(worker, other_core), process(["-m", "services.router"], router_core, env, log) as pid:
            await until_ready(f"http://127.0.0.1:{stand.router}/health/ready")
            for stage in STAGES:  # what is made once is made before it counts
                await stand.wave(stage, WAVE, stream=True)
            stand.clients.clear()
            before_mb = rss_mb(pid)
            for stage in STAGES:
                for wave in range(2 * EACH // WAVE):
                    await stand.wave(stage, WAVE, stream=wave % 2 == 0)
            await asyncio.sleep(LOG_S)
            grown_mb, open_still = rss_mb(pid) - before_mb, _open(pid, stand.router)
        log.seek(0)
        return [
            *_figures(stand.clients, [json.loads(line) for line in log]),
            Figure("connections that are still open", open_still, "", 0, at_least=False),
            Figure("memory since the first waves", grown_mb, "MB", 5, at_least=False),
        ]


def _open(pid: int, port: int) -> int:
    """Connections of clients that the router holds."""
    held = psutil.Process(pid).net_connections("tcp")
    return sum(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in held)


def _figures(clients: Sequence[Client], log: Sequence[dict[str, Any]]) -> list[Figure]:
    lines = {line["id"]: line for line in log if line["event"] == "request"}
    ends = Counter(lines[client.id]["outcome"] for client in clients if client.id in lines)
    waits_ms: dict[str, list[int]] = {}
    for client in clients:
        line = lines.get(client.id)
        if line is not None and line["outcome"] == "client_gone":
            waits_ms.setdefault(client.stage, []).append(_milliseconds(line["time"]) - int(client.left_at * 1000))
    all_ms = sorted(wait for waits in waits_ms.values() for wait in waits)
    slowest = max(waits_ms, key=lambda stage: _quantile(sorted(waits_ms[stage]), 0.99))
    asked = [client for client in clients if client.stage not in UNASKED]
    return [
        Figure("place free after its client left, p50", _quantile(all_ms, 0.5), "ms",
               note=f"{len(clients):,} left, {WAVE} at a time: {len(all_ms):,} held a place"),
        Figure("place free after its client left, p99", _quantile(all_ms, 0.99), "ms", 100, at_least=False,
               note=f"at most {all_ms[-1]} ms; slowest at {slowest!r}"),
        Figure("requests that ended in any other way", len(asked) - len(all_ms) - ends["served"], "", 0,
               at_least=False, note=f"{ends['served']} had their whole answer"),
    ]  # fmt: skip


def _milliseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


if __name__ == "__main__":
    for figure in uvloop.run(measure()):
        print(f"{figure.name}: {figure.shown} {figure.wanted} {figure.verdict}  {figure.note}")
