"""A bare HTTP/1.1 load client: closed loop for throughput, open loop (Poisson) for latency.

The closed loop keeps N connections busy and tells what the server can do. The open loop sends whether or not answers
come, and counts from the *intended* time, so that a stall is seen by everyone it would have hurt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter  # uvloop's own clock counts whole milliseconds

_END_OF_HEAD = b"\r\n\r\n"

Request = bytes | Callable[[], bytes]  # the same each time, or the next one


def post(port: int, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n%s" % (len(body), body)


@dataclass
class Tally:
    """Seconds per answer, statuses, and streamed events; with `judge`, how many bodies it gave which verdict."""

    judge: Callable[[bytes], str] | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    events: int = 0
    reads: int = 0
    failed: int = 0
    wall_s: float = 0.0

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall_s

    def rate_of(self, *verdicts: str) -> float:
        """Answers per second with one of these verdicts."""
        return sum(self.verdicts.get(verdict, 0) for verdict in verdicts) / self.wall_s

    def answered(self, status: int, body: bytes) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if self.judge is not None:
            verdict = self.judge(body)
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1


class Connection(asyncio.Protocol):
    """One request at a time; answers with a content-length, or chunked ones that end in the last chunk."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.buffer = self.body = b""
        self.chunked = False
        self.need = -1
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.buffer, self.body, self.need, self.chunked = b"", b"", -1, False
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        if self.need < 0:
            self.buffer += data
            end = self.buffer.find(_END_OF_HEAD)
            if end < 0:
                return
            head = self.buffer[:end].lower()
            self.status = int(head[9:12])
            self.chunked = b"transfer-encoding: chunked" in head
            data = self.buffer[end + 4 :]
            self.need = 0 if self.chunked else int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if self.chunked:
            self.tally.events += data.count(b"data: ")
            self.tally.reads += 1
            if data.endswith(b"0\r\n\r\n"):
                self.finish()
            return
        self.need -= len(data)
        if self.tally.judge is not None:
            self.body += data
        if self.need <= 0:
            self.finish()

    def finish(self) -> None:
        self.tally.answered(self.status, self.body)
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed before the answer"))


async def connect(port: int, tally: Tally) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(tally), "127.0.0.1", port)
    return connection


async def closed_loop(
    port: int, request: Request, connections: int, seconds: float, judge: Callable[[bytes], str] | None = None
) -> Tally:
    """`connections` clients that ask again as soon as they are answered; what they ask while warming up is not told."""
    warm, tally = Tally(), Tally(judge)
    clients = [await connect(port, warm) for _ in range(connections)]
    await _drive(clients, request, min(1.0, seconds / 4), warm)
    for client in clients:
        client.tally = tally
    await _drive(clients, request, seconds, tally)
    for client in clients:
        client.transport.close()
    return tally


async def _drive(clients: list[Connection], request: Request, seconds: float, tally: Tally) -> None:
    began = perf_counter()

    async def one(client: Connection) -> None:
        while (sent := perf_counter()) - began < seconds:
            await client.ask(request if isinstance(request, bytes) else request())
            tally.seconds.append(perf_counter() - sent)

    await asyncio.gather(*map(one, clients))
    tally.wall_s = perf_counter() - began


async def open_loop(port: int, request: bytes, rate: float, seconds: float, seed: int = 1) -> Tally:
    """Poisson arrivals at `rate` per second; latency from the intended time of sending."""
    tally, rng = Tally(), random.Random(seed)
    idle = [await connect(port, tally) for _ in range(32)]
    began = perf_counter()
    pending: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        client = idle.pop() if idle else await connect(port, tally)
        try:
            await client.ask(request)
            tally.seconds.append(perf_counter() - due)
            idle.append(client)
        except ConnectionError:
            tally.failed += 1

    due = began
    while (due := due + rng.expovariate(rate)) - began < seconds:
        await asyncio.sleep(max(0.0, due - perf_counter()))
        task = asyncio.create_task(one(due))
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
    tally.wall_s = perf_counter() - began
    for client in idle:
        client.transport.close()
    return tally
