"""A closed loop over bare HTTP/1.1 connections: N clients that send again as soon as they are answered.

It measures a server's capacity. It parses as little as possible, because it shares a core with the server. The open
loop (`client`, `rates`) measures what users get at a given rate.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter  # uvloop's own clock counts whole milliseconds

from loadtests.load.figures import quantile_of

_END_OF_HEAD = b"\r\n\r\n"

Request = bytes | Callable[[], bytes]  # the same each time, or the next one


def post(port: int, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n%s" % (len(body), body)


@dataclass
class LoopResults:
    """Seconds per answer, statuses and streamed events; with `judge`, the number of bodies per verdict."""

    judge: Callable[[bytes], str] | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    events: int = 0
    reads: int = 0
    wall_s: float = 0.0

    def quantile_ms(self, q: float) -> float:
        """Milliseconds; NaN without answers."""
        return 1000 * quantile_of(self.seconds, q)

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.wall_s

    def rate_of(self, *verdicts: str) -> float:
        """Answers per second with one of these verdicts."""
        return sum(self.verdicts.get(verdict, 0) for verdict in verdicts) / self.wall_s

    def only(self, status: int) -> None:
        """Raises RuntimeError unless every answer had this status."""
        if set(self.statuses) != {status}:
            raise RuntimeError(f"expected answers with {status} only, got {self.statuses}")

    def answered(self, status: int, body: bytes, seconds: float) -> None:
        self.seconds.append(seconds)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if self.judge is not None:
            verdict = self.judge(body)
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1


class Connection(asyncio.Protocol):
    """One request at a time; answers have a content-length, or chunks that end with the last chunk."""

    def __init__(self, results: LoopResults) -> None:
        self.results = results
        self.buffer = self.body = b""
        self.chunked = False
        self.need = -1
        self.done: asyncio.Future[None] | None = None
        self.asked_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.buffer, self.body, self.need, self.chunked = b"", b"", -1, False
        self.asked_at = perf_counter()
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
            self.results.events += data.count(b"data: ")
            self.results.reads += 1
            if data.endswith(b"0\r\n\r\n"):
                self.finish()
            return
        self.need -= len(data)
        if self.results.judge is not None:
            self.body += data
        if self.need <= 0:
            self.finish()

    def finish(self) -> None:
        self.results.answered(self.status, self.body, perf_counter() - self.asked_at)
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("closed before the answer"))


async def hold(port: int, requests: Iterable[bytes], pause_s: float) -> list[Connection]:
    """Send requests that are never answered, each on its own connection. After `pause_s` all have arrived."""
    held = []
    for request in requests:
        connection = await connect(port, LoopResults())
        connection.ask(request).add_done_callback(_ignored)
        held.append(connection)
    await asyncio.sleep(pause_s)
    return held


def _ignored(done: asyncio.Future[None]) -> None:
    """Retrieve the exception of a request that only occupied a place."""
    if not done.cancelled():
        done.exception()


async def connect(port: int, results: LoopResults) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(results), "127.0.0.1", port)
    return connection


async def closed_loop(
    port: int,
    request: Request,
    connections: int,
    seconds: float,
    judge: Callable[[bytes], str] | None = None,
    warm_up_s: float | None = None,
) -> LoopResults:
    """`connections` clients that send again as soon as they are answered. Answers within `seconds` are counted.

    They warm up first: by default for a quarter of that time, at most one second. Raises ConnectionError.
    """
    clients = [await connect(port, LoopResults(judge)) for _ in range(connections)]
    results, over = LoopResults(judge), False

    async def one(client: Connection) -> None:
        while not over:
            await client.ask(request if isinstance(request, bytes) else request())

    asking = asyncio.gather(*map(one, clients))
    try:
        await _for(asking, min(1.0, seconds / 4) if warm_up_s is None else warm_up_s)
        _count(clients, results)
        began = perf_counter()
        await _for(asking, seconds)
        results.wall_s = perf_counter() - began
        _count(clients, LoopResults(judge))
        over = True
        await asking
    finally:
        over = True
        for client in clients:
            client.transport.close()
    return results


async def _for(asking: asyncio.Future[list[None]], seconds: float) -> None:
    """Wait `seconds`, or until the first client fails, and raise its exception."""
    ended, _ = await asyncio.wait([asking], timeout=seconds)
    for each in ended:
        await each


def _count(clients: Iterable[Connection], results: LoopResults) -> None:
    for client in clients:
        client.results = results


async def closed_number(
    port: int, requests: Sequence[bytes], connections: int, number: int, judge: Callable[[bytes], str] | None = None
) -> LoopResults:
    """Send `number` requests, cycling through `requests`, from closed-loop clients."""
    results, following = LoopResults(judge), itertools.cycle(requests)
    left = itertools.count()
    clients = [await connect(port, results) for _ in range(connections)]
    began = perf_counter()

    async def one(client: Connection) -> None:
        while next(left) < number:
            await client.ask(next(following))

    await asyncio.gather(*map(one, clients))
    results.wall_s = perf_counter() - began
    for client in clients:
        client.transport.close()
    return results
