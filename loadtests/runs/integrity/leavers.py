"""Clients that disconnect at twelve stages, streamed and unary: how soon the router frees their slots.

Three processes: the clients, the router, and a worker that falls silent at the stage (`loadtests.faults.evil.staged`).
50 clients disconnect at the same moment, half by FIN and half by reset. A slot is free at the time of the router's log
line for its request, which is written in the same turn of the event loop; figures are exact to the millisecond.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime
from math import nan
from pathlib import Path
from time import perf_counter, time

import psutil

from loadtests.cluster import books
from loadtests.cluster.books import total
from loadtests.cluster.making import ASK, CHAT, MODEL, Making, Shape
from loadtests.cluster.processes import get, python
from loadtests.cluster.stack import new_folder
from loadtests.cluster.stand import Server, key_of, ready
from loadtests.cluster.steadyports import HOST, steady_ports
from loadtests.cluster.usage import cores, pinned, rss_mb
from loadtests.faults.evil.staged import STAGES
from loadtests.judging import rules
from loadtests.judging.nonces import nonce
from loadtests.load.figures import quantile
from loadtests.report.progress import Say
from loadtests.runs.integrity import logs
from loadtests.runs.integrity.checker import End, Rule
from loadtests.runs.integrity.parts import Done, Part
from loadtests.runs.integrity.questions import ROUTES, posted

WAVE = 50
WAYS = 2  # streamed and unary
UNASKED = ("connect", "headers", "body")
RESET = struct.pack("ii", 1, 0)
LOG_S = 0.3  # until the log is flushed
LOOK_EVERY_S = 0.005
WITHIN_S = 30.0
MAX_TOKENS = 8
LEFT, OTHERWISE = "clients that left", "ended otherwise"
MAX_KEPT = 10


class Client:
    def __init__(self, id: str, stage: str, port: int) -> None:
        self.id = id
        self.stage = stage
        self.left_at = 0.0
        self._port = port
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, (HOST, self._port))
        await loop.sock_sendall(self._socket, data)

    async def read_to_the_end(self) -> None:
        """Read one answer. Raises RuntimeError if the connection ends first."""
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
    tenant = ASK if stage == "retrieval" else CHAT
    asked = {"query": stage} if tenant == ASK else {"messages": [{"role": "user", "content": f"{stage}: {id}"}]}
    body = json.dumps({**asked, "max_tokens": MAX_TOKENS, "stream": stream}).encode()
    data = posted("bench", ROUTES[tenant], body, id, f"authorization: Bearer {key_of(tenant)}")
    head = data[: -len(body)]
    return {"connect": b"", "headers": head[: len(head) // 2], "body": head + body[:5]}.get(stage, data)


class Waves:
    """Clients that reach a stage and leave together. `there`: URL of the staged worker's count of arrivals."""

    def __init__(self, router: Server, there: str) -> None:
        self.clients: list[Client] = []
        self.came = 0
        self._router, self._there_url = router, there
        self._port = int(router.url.rsplit(":", 1)[1])
        self._there = 0

    async def wave(self, stage: str, count: int, *, stream: bool) -> None:
        """`count` clients reach the stage and disconnect at once. Raises TimeoutError if a slot is not freed."""
        holders = [await self._come("dispatched", stream=stream) for _ in range(WAVE if stage == "queued" else 0)]
        await self._until_there(len(holders))
        clients = [await self._come(stage, stream=stream) for _ in range(count)]
        await self._until_at(stage, clients)
        for number, client in enumerate(clients):
            client.leave(reset=number % 2 == 1)
        self.clients += clients
        for client in holders:
            client.leave(reset=False)
        await _until(self._empty)

    async def _come(self, stage: str, *, stream: bool) -> Client:
        self.came += 1
        client = Client(nonce(self.came), stage, self._port)
        await client.send(request(client.id, stage, stream=stream))
        return client

    async def _until_at(self, stage: str, clients: list[Client]) -> None:
        if stage == "queued":
            await _until(lambda: self._is_queued(len(clients)))
        elif stage == "after the end":
            await asyncio.gather(*(client.read_to_the_end() for client in clients))
        elif stage not in UNASKED:
            await self._until_there(len(clients))

    async def _until_there(self, more: int) -> None:
        self._there += more
        await _until(self._are_there)

    async def _are_there(self) -> bool:
        return int(get(self._there_url)) >= self._there

    async def _is_queued(self, count: int) -> bool:
        return total(self._metrics(), "weir_queue_depth") == count

    async def _empty(self) -> bool:
        text = self._metrics()
        return total(text, "weir_inflight") + total(text, "weir_queue_depth") == 0

    def _metrics(self) -> str:
        """Blocks the event loop on purpose: nothing else may happen meanwhile."""
        return get(self._router.metrics_url).decode()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await condition():  # noqa: ASYNC110  the state of another process sets no event
            await asyncio.sleep(LOOK_EVERY_S)


@asynccontextmanager
async def _stand() -> AsyncIterator[tuple[Server, Server]]:
    """The staged worker, twice, and a router that may retry every request and whose cap is one wave."""
    async with AsyncExitStack() as leaving:
        folder: Path = leaving.enter_context(new_folder())
        ports = leaving.enter_context(closing(steady_ports()))
        making = Making(folder, ports, Shape(wires=False, stores=False))
        one, other = next(ports), next(ports)
        words = python("-m", "loadtests.faults.evil.staged", MODEL, str(one), str(other))
        staged = making.server("staged", words, one)
        entries = [
            {"name": f"staged-{port}", "kind": "weir", "url": f"http://{HOST}:{port}"} for port in (one, other)
        ]  # fmt: skip
        settings = {
            "MAX_INFLIGHT": str(WAVE), "RETRY_SHARE": "1", "RETRIEVAL_URL": staged.url, "RETRIEVAL_BUDGET_MS": "30000",
            "DEFAULT_TTFT_MS": "30000", "STREAM_SILENCE_S": str(WITHIN_S),
        }  # fmt: skip
        router = making.router_before(entries, settings)
        for server in (staged, router):
            leaving.push_async_callback(server.process.stop)
            server.process.start()
        await ready(router)
        router_core, other_core = cores()
        os.sched_setaffinity(router.process.pid, router_core)
        os.sched_setaffinity(staged.process.pid, other_core)
        leaving.enter_context(pinned(other_core))
        yield router, staged


async def play(part: Part, say: Say) -> Done:
    """Play all leavers of a part. Raises StandError, or TimeoutError if a slot is not freed."""
    began, each = perf_counter(), max(1, round(part.requests / len(STAGES) / WAYS))
    async with _stand() as (router, staged):
        waves, pid = Waves(router, f"{staged.url}/there"), router.process.pid
        for stage in STAGES:  # warm-up: one-time allocations are not measured
            await waves.wave(stage, min(WAVE, each), stream=True)
        waves.clients.clear()
        before_mb = rss_mb(pid)
        for number, stage in enumerate(STAGES):
            for stream in (True, False):
                for first in range(0, each, WAVE):
                    await waves.wave(stage, min(WAVE, each - first), stream=stream)
            say(f"{number + 1} of {len(STAGES)} stages: {stage}")
        await asyncio.sleep(LOG_S)
        values = {"memory": rss_mb(pid) - before_mb, "open": _open(pid, router.url)}
        metrics = get(router.metrics_url).decode()
        await router.process.stop()
        done = judged(part, waves.clients, router.process.log, metrics)
    done.values |= values
    done.took_s = perf_counter() - began
    return done


def _open(pid: int, url: str) -> int:
    port = int(url.rsplit(":", 1)[1])
    held = psutil.Process(pid).net_connections("tcp")
    return sum(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in held)


def judged(part: Part, clients: Sequence[Client], log: Path, metrics: str) -> Done:
    ended = {str(record["id"]): record for _, record in logs.records(log) if record.get("event") == "request"}
    written = logs.read_router_log(log)
    waits_ms: dict[str, list[float]] = {}
    for client in clients:
        line = ended.get(client.id, {})
        if line.get("outcome") == "client_gone":
            waits_ms.setdefault(client.stage, []).append(_milliseconds(line["time"]) - int(client.left_at * 1000))
    all_ms = [wait for waits in waits_ms.values() for wait in waits]
    served = sum(ended.get(client.id, {}).get("outcome") == "served" for client in clients)
    asked = sum(client.stage not in UNASKED for client in clients)
    broken = [*rules.one_end((), written.lines), *rules.log_and_metrics_agree(written.last, +books.of_router(metrics))]
    counts = {
        LEFT: len(clients), "held a place": len(all_ms), "had their whole answer": served,
        OTHERWISE: asked - len(all_ms) - served, "errors": len(written.errors),
        End.DOUBLED.value: sum(bool(each.id) for each in broken),
        Rule.MISCOUNTED.value: sum(not each.id for each in broken),
    }  # fmt: skip
    values = {f"p99: {stage}": _quantile(waits, 0.99) for stage, waits in waits_ms.items()}
    values |= {"p50": _quantile(all_ms, 0.5), "p99": _quantile(all_ms, 0.99), "most": max(all_ms, default=0.0)}
    kept = [*(each.what for each in broken), *written.errors][:MAX_KEPT]
    return Done(part.number, part.kind.value, Counter(counts), values=values, kept=kept)


def _milliseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


def _quantile(values: Sequence[float], q: float) -> float:
    return quantile(sorted(values), q) if values else nan
