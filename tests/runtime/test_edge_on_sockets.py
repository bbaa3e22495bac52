"""The edge on sockets of the kernel and the loop of production: what the network in memory claims, held to the truth.

All cases share one server, whose limits are a second or more: a machine that stalls for less reaches none of them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from services.runtime.serve import SEND_BUFFER_BYTES, FineClockLoop, HttpListener, Process
from tests.runtime.corpus import get
from tests.runtime.rig import post, send, serving, until

pytestmark = pytest.mark.sockets

PIECE = b"x" * 65_536
PIECES = 256  # 16 MiB: more than any two kernels buffer
MAX_CONNECTIONS = 6
KEPT = b"GET /echo HTTP/1.1\r\nhost: t\r\n\r\n"
RESET = struct.pack("ii", 1, 0)
LIMITS = GuardLimits(headers_s=1.0, body_s=1.0, write_stall_s=1.0, body_bytes=4096, connections=MAX_CONNECTIONS)


@dataclass
class Edge:
    """The server, and what its handlers have seen."""

    play: Callable[[Coroutine[Any, Any, None]], None]
    process: Process = field(init=False)
    gone: int = 0
    poured: int = 0
    ended: int = 0

    @property
    def port(self) -> int:
        return self.process.bound_port

    @property
    def connections(self) -> int:
        listener = self.process.listener
        assert isinstance(listener, HttpListener)
        return len(listener._shared.connections)

    async def echo(self, exchange: Exchange) -> None:
        await exchange.reply(200, exchange.body, content_type=b"application/octet-stream")

    async def wait(self, exchange: Exchange) -> None:
        gone = asyncio.Event()
        exchange.on_gone(gone.set)
        await gone.wait()
        self.gone += 1

    async def pour(self, exchange: Exchange) -> None:
        exchange.on_gone(asyncio.current_task().cancel)  # type: ignore[union-attr]  # a handler runs in a task
        self.poured = 0
        try:
            await exchange.start(200, b"text/plain")
            for _ in range(PIECES):
                await exchange.write(PIECE)
                self.poured += 1
            await exchange.end(b"")
        finally:
            self.ended += 1


@pytest.fixture(scope="module")
def served() -> Iterator[Edge]:
    with asyncio.Runner(loop_factory=FineClockLoop) as runner:
        edge = Edge(runner.run)
        routes = {("POST", "/echo"): edge.echo, ("GET", "/echo"): edge.echo, ("GET", "/wait"): edge.wait,
                  ("GET", "/pour"): edge.pour}  # fmt: skip
        context = serving(routes, limits=LIMITS, idle_timeout_s=1.0)
        edge.process = runner.run(context.__aenter__())
        yield edge
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def edge(served: Edge) -> Iterator[Edge]:
    """The server, with nobody connected before and after."""
    served.gone = served.poured = served.ended = 0
    yield served
    served.play(until(lambda: served.connections == 0, "the end of every connection"))
    assert served.process.drain.inflight == 0


async def connected(edge: Edge) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", edge.port)


PARTS = {
    "half the headers": (b"GET /echo HTTP/1.1\r\nho", b"the headers took longer than"),
    "half the body": (post("/echo", b"half" * 10)[:-20], b"the body took longer than"),
}


@pytest.mark.parametrize(("part", "told"), PARTS.values(), ids=PARTS.keys())
def test_a_request_that_does_not_arrive_gets_408(edge: Edge, part: bytes, told: bytes) -> None:
    async def main() -> None:
        answer = await send(edge.port, part)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert told in answer

    edge.play(main())


def test_a_connection_that_asks_nothing_is_closed_without_a_word(edge: Edge) -> None:
    async def main() -> None:
        assert await send(edge.port, b"") == b""

    edge.play(main())


def test_a_connection_at_rest_is_closed_after_the_idle_timeout(edge: Edge) -> None:
    async def main() -> None:
        answer = await send(edge.port, KEPT)
        assert answer.startswith(b"HTTP/1.1 200 ")  # and then `send` returned, so the server closed

    edge.play(main())


def test_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    async def main() -> None:
        one = post("/echo", b"one").replace(b"connection: close\r\n", b"")
        answer = await send(edge.port, one + one.replace(b"one", b"two") + post("/echo", b"three"))
        assert [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]] == [
            b"one", b"two", b"three",
        ]  # fmt: skip

    edge.play(main())


def test_a_client_that_has_said_all_and_closed_its_half_gets_its_answer(edge: Edge) -> None:
    async def main() -> None:
        answer = await send(edge.port, KEPT, half_close=True)
        assert answer.startswith(b"HTTP/1.1 200 ")

    edge.play(main())


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_is_noticed_at_once(edge: Edge, reset: bool) -> None:
    async def main() -> None:
        _, writer = await connected(edge)
        writer.write(get(b"/wait"))
        await until(lambda: edge.process.drain.inflight == 1, "the handler's start")
        if reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
        await until(lambda: edge.gone == 1, "the notice")

    edge.play(main())


def test_a_client_that_never_reads_is_cut_off_and_its_handler_ends(edge: Edge) -> None:
    async def main() -> None:
        reader, writer = await connected(edge)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(get(b"/pour"))
        await until(lambda: edge.ended == 1, "the handler's end")
        assert edge.poured < PIECES
        writer.transport.abort()

    edge.play(main())


def test_a_writer_waits_for_a_slow_reader_and_loses_nothing(edge: Edge) -> None:
    async def main() -> None:
        reader, writer = await connected(edge)
        writer.write(get(b"/pour"))
        await reader.readuntil(b"\r\n\r\n")  # and no more, until the buffers are full
        seen = -1
        while seen != edge.poured:
            seen = edge.poured
            await asyncio.sleep(0.05)
        assert edge.poured < PIECES
        body = await reader.read(-1)
        assert body.count(b"x") == PIECES * len(PIECE)
        writer.close()

    edge.play(main())


def test_a_client_that_is_still_sending_can_read_why_it_was_refused(edge: Edge) -> None:
    async def main() -> None:
        reader, writer = await connected(edge)
        writer.write(b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(100):
            writer.write(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    edge.play(main())


def test_more_connections_than_the_bound_are_refused_at_once_and_the_others_stay(edge: Edge) -> None:
    async def main() -> None:
        held = [await connected(edge) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(get(b"/wait"))
        await until(lambda: edge.process.drain.inflight == MAX_CONNECTIONS, "all of them")
        assert (await send(edge.port, KEPT)).startswith(b"HTTP/1.1 429 ")
        assert edge.process.drain.inflight == MAX_CONNECTIONS
        for _, writer in held:
            writer.close()
        await until(lambda: edge.gone == MAX_CONNECTIONS, "their ends")

    edge.play(main())


def test_small_answers_are_not_delayed_and_what_a_kernel_holds_for_a_client_is_bounded(edge: Edge) -> None:
    async def main() -> None:
        _, writer = await connected(edge)
        writer.write(get(b"/wait"))
        await until(lambda: edge.process.drain.inflight == 1, "the handler's start")
        listener = edge.process.listener
        assert isinstance(listener, HttpListener)
        (connection,) = listener._shared.connections
        sock = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (SEND_BUFFER_BYTES, 2 * SEND_BUFFER_BYTES)
        writer.close()
        await until(lambda: edge.gone == 1, "the notice")

    edge.play(main())
