"""What the network in memory and its clocks do that no kernel can be asked for; the rest is in `test_conformance`."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Coroutine
from typing import Any

import pytest

from loadtests.cluster.loop import SimLoop, Simulation, run

MEGABYTE = b"x" * 1_000_000


class Peer(asyncio.Protocol):
    """Notes what its transport tells it."""

    def __init__(self, *, half_open: bool = False) -> None:
        self.seen: list[str] = []
        self.data = b""
        self.transport: Any = None
        self._half_open = half_open

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.seen.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.seen.append("eof")
        return self._half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append(f"lost {type(exc).__name__}" if exc else "lost")

    def pause_writing(self) -> None:
        self.seen.append("pause")

    def resume_writing(self) -> None:
        self.seen.append("resume")


async def pair(*, half_open: bool = False) -> tuple[Peer, Peer]:
    """A client and the server's end of one connection within this process."""
    loop = asyncio.get_running_loop()
    server_end = Peer(half_open=half_open)
    server = await loop.create_server(lambda: server_end, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, client_end = await loop.create_connection(lambda: Peer(half_open=half_open), "127.0.0.1", port)
    await asyncio.sleep(0.001)
    return client_end, server_end


def test_bytes_arrive_whole_and_in_order_however_they_are_cut() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.network.short_reads = 1.0
        client, server = await pair()
        sent = bytes(range(256)) * 400
        client.transport.write(sent)
        await asyncio.sleep(10)
        assert server.data == sent

    run(main())


def test_a_name_that_no_host_has_is_not_known() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="not known"):
            await asyncio.get_running_loop().create_connection(Peer, "nowhere", 1)

    run(main())


class Echo(Peer):
    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def two(seed: int = 1) -> tuple[Simulation, SimLoop, SimLoop]:
    """A simulation with a process that echoes on port 80, and the loop of a client."""
    simulation = Simulation(seed)
    server = SimLoop(simulation, "server", "10.0.0.1")
    client = SimLoop(simulation, "client", "10.0.0.2")
    server.create_task(server.create_server(Echo, "0.0.0.0", 80))
    return simulation, server, client


def play(client: SimLoop, simulation: Simulation, main: Coroutine[Any, Any, None]) -> None:
    try:
        client.run_until_complete(main)
    finally:
        simulation.close()


async def connected() -> Peer:
    await asyncio.sleep(0.1)
    return (await asyncio.get_running_loop().create_connection(Peer, "server", 80))[1]


def test_a_frozen_process_accepts_and_takes_bytes_and_answers_when_it_thaws() -> None:
    simulation, server, client = two()

    async def main() -> None:
        await asyncio.sleep(0.1)
        server.freeze()
        peer = await connected()
        peer.transport.write(b"hello")
        await asyncio.sleep(60)
        assert peer.data == b""
        server.thaw()
        await asyncio.sleep(0.1)
        assert peer.data == b"hello"

    play(client, simulation, main())


def test_the_kernel_closes_what_a_killed_process_had_open_and_refuses_newcomers() -> None:
    simulation, server, client = two()

    async def main() -> None:
        peer = await connected()
        server.kill()
        await asyncio.sleep(0.1)
        assert peer.seen == ["made", "eof", "lost"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Peer, "server", 80)
        again = SimLoop(simulation, "server", "10.0.0.1")
        again.create_task(again.create_server(Echo, "0.0.0.0", 80))
        peer = await connected()
        peer.transport.write(b"back")
        await asyncio.sleep(0.1)
        assert peer.data == b"back"

    play(client, simulation, main())


def test_nothing_of_a_killed_process_runs_again_that_others_could_see() -> None:
    simulation, server, client = two()
    said: list[str] = []

    async def works() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(Peer, "client", 81)
        try:
            await asyncio.sleep(1)
            said.append("it worked on")
        finally:
            transport.write(b"last words")

    async def main() -> None:
        heard = Peer()
        await asyncio.get_running_loop().create_server(lambda: heard, "0.0.0.0", 81)
        server.create_task(works())
        await asyncio.sleep(0.5)
        server.kill()
        await asyncio.sleep(5)
        assert said == []
        assert heard.data == b""

    play(client, simulation, main())


def test_a_future_that_fails_after_its_process_was_killed_is_nobodys_error() -> None:
    simulation, server, client = two()
    told: list[object] = []
    server.set_exception_handler(lambda loop, context: told.append(context))

    async def main() -> None:
        answer = server.create_future()
        server.kill()
        answer.set_exception(OSError("the wire was cut"))
        del answer
        gc.collect()
        assert told == []

    play(client, simulation, main())


def test_what_a_cut_link_holds_back_arrives_when_it_heals() -> None:
    simulation, server, client = two()

    async def main() -> None:
        peer = await connected()
        simulation.network.cut(client.host, server.host)
        peer.transport.write(b"over the gap")
        await asyncio.sleep(10)
        assert peer.data == b""
        simulation.network.heal(client.host, server.host)
        await asyncio.sleep(0.5)
        assert peer.data == b"over the gap"

    play(client, simulation, main())


def test_a_handshake_through_a_cut_link_waits_for_its_next_try() -> None:
    simulation, server, client = two()

    async def main() -> None:
        await asyncio.sleep(0.1)
        simulation.network.cut(server.host, client.host)
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, simulation.network.heal, server.host, client.host)
        began = loop.time()
        await connected()
        assert loop.time() - began == pytest.approx(1.1, abs=0.01)

    play(client, simulation, main())


def test_a_clock_that_jumps_makes_what_was_due_late() -> None:
    simulation, server, client = two()
    rang: list[float] = []

    async def main() -> None:
        server.call_later(100, lambda: rang.append(simulation.now))
        await asyncio.sleep(1)
        server.jump(1000)
        await asyncio.sleep(0.1)
        assert rang == [pytest.approx(1001.0)]

    play(client, simulation, main())


def test_the_same_seed_gives_the_same_events_and_another_seed_gives_others() -> None:
    def digest(seed: int) -> str:
        simulation, server, client = two(seed)
        simulation.network.latency_s, simulation.network.jitter_s = 0.01, 0.01
        simulation.network.short_reads = 0.5

        async def main() -> None:
            peers = [await connected() for _ in range(3)]
            for peer in peers:
                peer.transport.write(b"0123456789" * 10)
            await asyncio.sleep(1)
            server.kill()
            await asyncio.sleep(1)

        play(client, simulation, main())
        return simulation.digest

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_read_error_in_a_protocol_closes_its_connection_and_is_told() -> None:
    class Broken(Peer):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot read this")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        told: list[str] = []
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        broken = Broken()
        server = await loop.create_server(lambda: broken, "127.0.0.1", 0)
        _, client = await loop.create_connection(Peer, "127.0.0.1", server.sockets[0].getsockname()[1])
        client.transport.write(b"?")  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
        assert told == ["cannot read this"]
        assert broken.seen == ["made", "lost ValueError"]

    run(main())


def test_a_small_receive_buffer_holds_less_of_what_nobody_reads() -> None:
    async def main() -> None:
        client, server = await pair()
        server.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.transport.pause_reading()
        client.transport.write(MEGABYTE)
        await asyncio.sleep(1)
        assert client.transport.get_write_buffer_size() == len(MEGABYTE) - 65_536 - 4096
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.data == MEGABYTE

    run(main())
