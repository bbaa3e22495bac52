"""Clients that leave, at twelve stages, streamed and plain: how soon the router has given back what they held.

Three processes: these clients, the router, a worker that falls silent at the stage (`loadtests.faults.evil.staged`).
Half of the clients close, half reset; 50 of them in the same moment. When the place of each was given back is the time
of the router's log line for it, which is written in the same turn of its event loop; so figures are to the millisecond.
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

from loadtests.bench.machine import cores, pinned
from loadtests.cluster import books
from loadtests.cluster.books import total
from loadtests.cluster.making import ASK, CHAT, MODEL, Making, Shape
from loadtests.cluster.processes import family, get, python
from loadtests.cluster.stack import new_folder
from loadtests.cluster.stand import Server, key_of, ready
from loadtests.cluster.steadyports import HOST, steady_ports
from loadtests.faults.evil.staged import STAGES
from loadtests.judging import rules
from loadtests.judging.nonces import nonce
from loadtests.runs.integrity import logs
from loadtests.runs.integrity.checker import End, Rule
from loadtests.runs.integrity.parts import Done, Part
from loadtests.runs.integrity.questions import ROUTES, posted

WAVE = 50
WAYS = 2  # streamed and plain
UNASKED = ("connect", "headers", "body")
RESET = struct.pack("ii", 1, 0)
LOG_S = 0.3  # until the log's writer has written
LOOK_EVERY_S = 0.005
WITHIN_S = 30.0
MAX_TOKENS = 8
LEFT, OTHERWISE = "clients that left", "ended otherwise"
MOST_KEPT = 10

Say = Callable[[str], None]


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
        """Connect, and send all of it."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, (HOST, self._port))
        await loop.sock_sendall(self._socket, data)

    async def read_to_the_end(self) -> None:
        """Of one answer. Raises RuntimeError where the connection ends first."""
        seen = b""
        while not _whole(seen):
            piece = await asyncio.get_running_loop().sock_recv(self._socket, 65_536)
            if not piece:
                raise RuntimeError(f"{self.id}: the connection ended after {seen!r}")
            seen += piece

    def leave(self, *, reset: bool) -> None:
        """Now, by a FIN or by a reset."""
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
    tenant = ASK if stage == "retrieval" else CHAT
    asked = {"query": stage} if tenant == ASK else {"messages": [{"role": "user", "content": f"{stage}: {id}"}]}
    body = json.dumps({**asked, "max_tokens": MAX_TOKENS, "stream": stream}).encode()
    data = posted("bench", ROUTES[tenant], body, id, f"authorization: Bearer {key_of(tenant)}")
    head = data[: -len(body)]
    return {"connect": b"", "headers": head[: len(head) // 2], "body": head + body[:5]}.get(stage, data)


class Waves:
    """Clients that come to a stage and leave together. `there`: where the staged worker says how many have come."""

    def __init__(self, router: Server, there: str) -> None:
        self.clients: list[Client] = []
        self.came = 0
        self._router, self._there_url = router, there
        self._port = int(router.url.rsplit(":", 1)[1])
        self._there = 0

    async def wave(self, stage: str, count: int, *, stream: bool) -> None:
        """So many, at the stage, all gone in one moment. Raises TimeoutError where a place is not given back."""
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
        """Blocks: nothing else is to happen here meanwhile."""
        return get(self._router.metrics_url).decode()


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await condition():  # noqa: ASYNC110  another process's state is no event of ours
            await asyncio.sleep(LOOK_EVERY_S)


@asynccontextmanager
async def _stand() -> AsyncIterator[tuple[Server, Server]]:
    """The staged worker and a router before it, which tries everything twice and whose cap is one wave."""
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
    """All leavers of a part. Raises StandError, or TimeoutError where a place is not given back."""
    began, each = perf_counter(), max(1, round(part.requests / len(STAGES) / WAYS))
    async with _stand() as (router, staged):
        waves, pid = Waves(router, f"{staged.url}/there"), router.process.pid
        for stage in STAGES:  # what is made once is made before it counts
            await waves.wave(stage, min(WAVE, each), stream=True)
        waves.clients.clear()
        before_mb = _memory_mb(pid)
        for number, stage in enumerate(STAGES):
            for stream in (True, False):
                for first in range(0, each, WAVE):
                    await waves.wave(stage, min(WAVE, each - first), stream=stream)
            say(f"  {number + 1} of {len(STAGES)} stages: {stage}")
        await asyncio.sleep(LOG_S)
        values = {"memory": _memory_mb(pid) - before_mb, "open": _open(pid, router.url)}
        metrics = get(router.metrics_url).decode()
        await router.process.stop()
        done = judged(part, waves.clients, router.process.log, metrics)
    done.values |= values
    done.took_s = perf_counter() - began
    return done


def _memory_mb(pid: int) -> float:
    """Resident memory of a process and of those it has started."""
    return sum(psutil.Process(each).memory_info().rss for each in family(pid)) / 2**20


def _open(pid: int, url: str) -> int:
    """Connections of clients that the router holds."""
    port = int(url.rsplit(":", 1)[1])
    held = psutil.Process(pid).net_connections("tcp")
    return sum(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in held)


def judged(part: Part, clients: Sequence[Client], log: Path, metrics: str) -> Done:
    """What the router's log says of those that left, and whether its metrics say the same."""
    ended = {str(told["id"]): told for _, told in logs.records(log) if told.get("event") == "request"}
    book = logs.book(log)
    waits_ms: dict[str, list[float]] = {}
    for client in clients:
        line = ended.get(client.id, {})
        if line.get("outcome") == "client_gone":
            waits_ms.setdefault(client.stage, []).append(_milliseconds(line["time"]) - int(client.left_at * 1000))
    all_ms = [wait for waits in waits_ms.values() for wait in waits]
    served = sum(ended.get(client.id, {}).get("outcome") == "served" for client in clients)
    asked = sum(client.stage not in UNASKED for client in clients)
    broken = [*rules.one_end((), book.lines), *rules.log_and_metrics_agree(book.last, +books.of_router(metrics))]
    counts = {
        LEFT: len(clients), "held a place": len(all_ms), "had their whole answer": served,
        OTHERWISE: asked - len(all_ms) - served, "errors": len(book.errors),
        End.DOUBLED.value: sum(bool(each.id) for each in broken),
        Rule.MISCOUNTED.value: sum(not each.id for each in broken),
    }  # fmt: skip
    values = {f"p99: {stage}": quantile(waits, 0.99) for stage, waits in waits_ms.items()}
    values |= {"p50": quantile(all_ms, 0.5), "p99": quantile(all_ms, 0.99), "most": max(all_ms, default=0.0)}
    kept = [*(each.what for each in broken), *book.errors][:MOST_KEPT]
    return Done(part.number, part.kind.value, Counter(counts), values=values, kept=kept)


def _milliseconds(stamp: str) -> int:
    return round(datetime.fromisoformat(stamp).timestamp() * 1000)


def quantile(values: Sequence[float], q: float) -> float:
    """By rank; not a number where there are no values, which holds no target."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else nan
