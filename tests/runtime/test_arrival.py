"""A deadline counts from the arrival of a request, also where the process that reads it was stopped meanwhile."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest

from loadtests.cluster.loop import SimLoop, Simulation
from services.runtime.arrival import DOUBT_S, EVERY_S, NOTICED_MS, Arrivals, unread_ms
from services.runtime.http import Exchange, become_task
from tests.runtime.rig import post, send, serving
from tests.virtual import run

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells")


class Told:
    """A socket with this `tcpi_last_data_recv`."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return struct.pack("=52xI", self.ms)[:size]


def test_the_kernel_tells_how_long_bytes_were_unread_and_its_coarse_clock_is_no_wait() -> None:
    arrivals = Arrivals()
    assert arrivals.unread_s(Told(1500), 1.0) == 1.5
    assert arrivals.unread_s(Told(NOTICED_MS + 1), 1.0) == (NOTICED_MS + 1) / 1000
    assert arrivals.unread_s(Told(NOTICED_MS), 1.0) == 0.0


def test_the_kernel_is_asked_now_and_then_and_for_every_request_after_a_wait() -> None:
    arrivals = Arrivals()
    arrivals.unread_s(Told(0), 1.0)
    assert arrivals.ask_at == 1.0 + EVERY_S
    arrivals.unread_s(Told(300), 2.0)
    assert arrivals.ask_at == 2.0
    arrivals.unread_s(Told(0), 2.5)  # a newcomer among those that waited
    assert arrivals.ask_at == 2.5
    arrivals.unread_s(Told(0), 2.0 + DOUBT_S)
    assert arrivals.ask_at == 2.0 + DOUBT_S + EVERY_S


def test_what_is_no_tcp_socket_has_no_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert unread_ms(ours) == unread_ms(None) == 0


@pytest.mark.sockets
def test_the_field_is_where_linux_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        served, _ = server.accept()
        with served:
            client.send(b"x")
            served.recv(1)
            while unread_ms(served) < 5 * NOTICED_MS:
                time.sleep(0.001)
            began = time.monotonic()
            client.send(b"x")
            served.recv(1)
            told_ms = unread_ms(served)
            assert told_ms <= (time.monotonic() - began) * 1000 + NOTICED_MS


def test_requests_that_came_while_the_process_was_stopped_have_waited_and_later_ones_have_not() -> None:
    simulation = Simulation(1)
    server = SimLoop(simulation, "server", "127.0.0.1")
    client = SimLoop(simulation, "client", "127.0.0.1")
    waits: dict[bytes, float] = {}
    port: asyncio.Future[int] = client.create_future()

    async def remember(exchange: Exchange) -> None:
        waits[exchange.body] = exchange.unread_s
        exchange.reply_now(200, b"{}")

    async def serve() -> None:
        async with serving({("POST", "/"): remember}, eager=("/",)) as process:
            client.call_soon(port.set_result, process.bound_port)
            await asyncio.Event().wait()

    async def main() -> None:
        to = await port
        await send(to, post("/", b"before"))
        server.freeze()
        client.call_later(0.5, server.thaw)
        early = asyncio.create_task(send(to, post("/", b"early")))
        await asyncio.sleep(0.3)
        late = asyncio.create_task(send(to, post("/", b"late")))
        await asyncio.gather(early, late)
        await send(to, post("/", b"after"))

    serving_task = server.create_task(serve())
    try:
        client.run_until_complete(main())
    finally:
        serving_task.cancel()
        simulation.close()
    assert waits == {
        b"before": 0.0,
        b"early": pytest.approx(0.5, abs=0.01),
        b"late": pytest.approx(0.2, abs=0.01),
        b"after": 0.0,
    }


def test_a_request_that_was_unread_behind_the_answer_before_it_counts_from_its_turn() -> None:
    """Reading pauses behind many pipelined requests: their time in the kernel is the client's own doing."""
    waits: list[float] = []

    async def slow(exchange: Exchange) -> None:
        waits.append(exchange.unread_s)
        await become_task()
        await asyncio.sleep(0.2)
        exchange.reply_now(200, b"{}")

    async def main() -> None:
        one = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n" + bytes(4000)
        async with serving({("POST", "/"): slow}, eager=("/",)) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            for _ in range(60):
                writer.write(one)
                await asyncio.sleep(0.001)
            for _ in range(60):
                await reader.readuntil(b"{}")
            writer.close()

    run(main)
    assert len(waits) == 60
    assert max(waits) == 0.0
