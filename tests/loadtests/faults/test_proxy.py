"""The proxy's faults, in memory. Each is judged by what holds while it does, never by how long it took."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.faults.proxy.control import controlled
from loadtests.faults.proxy.fault import FREEZE, HEALTHY, REFUSE, RESET, Fault, Mode, read
from loadtests.faults.proxy.proxy import HOST, FaultProxy
from tests.virtual import run

MUCH = 8 * 1024 * 1024


class Echo:
    """A server that says back what it hears, and counts what it has heard."""

    def __init__(self) -> None:
        self.heard = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.heard += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.talk, HOST, 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


def with_proxy(scenario: Callable[[FaultProxy, Echo], Awaitable[None]], **options: int) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), echoing() as echo:
            async with FaultProxy(HOST, echo.port, **options) as proxy:
                await scenario(proxy, echo)
            assert proxy.connections == 0
            while asyncio.all_tasks() - {asyncio.current_task()}:  # the proxy has left none, and the echo soon ends
                await asyncio.sleep(0.001)

    run(main())


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def said_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes = b"hello") -> bool:
    writer.write(words)
    return await reader.readexactly(len(words)) == words


async def settled(value: Callable[[], int]) -> int:
    """What it is once it has not changed for a while: for amounts that only ever grow."""
    before = -1
    while (now := value()) != before:
        before = now
        await asyncio.sleep(0.1)
    return before


def test_a_healthy_proxy_passes_everything_on_and_each_sides_end() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as (reader, writer):
            words = bytes(range(256)) * 4096
            sending = asyncio.create_task(_send_all(writer, words))
            assert await reader.readexactly(len(words)) == words
            await sending
            assert await reader.read() == b""
        while proxy.connections:
            await asyncio.sleep(0.001)

    with_proxy(scenario)


async def _send_all(writer: asyncio.StreamWriter, words: bytes) -> None:
    writer.write(words)
    await writer.drain()
    writer.write_eof()


def test_a_slow_proxy_holds_each_piece_for_its_latency_and_keeps_their_order() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        loop = asyncio.get_running_loop()
        await proxy.become(Fault(latency_s=0.1, jitter_s=0.05))
        async with connected(proxy) as (reader, writer):
            began = loop.time()
            for number in range(20):
                writer.write(bytes([number]))
                await asyncio.sleep(0.002)
            assert await reader.readexactly(20) == bytes(range(20))
            assert loop.time() - began >= 0.1  # twice the least that a piece may take

    with_proxy(scenario)


def test_what_is_on_its_way_arrives_when_the_wire_is_well_again() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        await proxy.become(Fault(latency_s=60.0))
        async with connected(proxy) as (reader, writer):
            writer.write(b"hello")
            assert await settled(lambda: echo.heard) == 0
            await proxy.become(HEALTHY)
            assert await reader.readexactly(5) == b"hello"

    with_proxy(scenario)


def test_the_same_seed_draws_the_same_jitter() -> None:
    one, same, other = (FaultProxy(HOST, 1, seed=seed) for seed in (7, 7, 8))
    draws = [[proxy._chance.random() for _ in range(4)] for proxy in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_a_narrow_proxy_lets_no_more_through_than_its_rate() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        loop = asyncio.get_running_loop()
        await proxy.become(Fault(rate_bytes_s=20_000))
        async with connected(proxy) as (reader, writer):
            began = loop.time()
            writer.write(b"x" * 4000)
            await reader.readexactly(4000)
            assert loop.time() - began >= 0.15  # 4,000 bytes at 20,000/s, but for the last step
            await proxy.become(HEALTHY)
            assert await said_back(reader, writer, b"y" * 100_000)

    with_proxy(scenario)


@pytest.mark.parametrize("length", [0, 1, 7, 5000])
def test_a_cut_comes_after_exactly_so_many_bytes_of_answer(length: int) -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        await proxy.become(Fault(cut_after_bytes=length))
        async with connected(proxy) as (reader, writer):
            writer.write(b"z" * 10_000)
            assert await reader.read() == b"z" * length
        await proxy.become(HEALTHY)
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)

    with_proxy(scenario)


def test_a_cut_now_ends_those_that_stand_and_no_later_one() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)
            proxy.cut()
            assert await reader.read() == b""
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)

    with_proxy(scenario)


def test_a_frozen_proxy_accepts_and_passes_nothing_on_until_it_thaws() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)
            await proxy.become(FREEZE)
            writer.write(b"held")
            async with connected(proxy) as (new_reader, new_writer):
                new_writer.write(b"held, too")
                while proxy.connections < 2:
                    await asyncio.sleep(0.001)
                assert await settled(lambda: echo.heard) == 5
                await proxy.become(HEALTHY)
                assert await reader.readexactly(4) == b"held"
                assert await new_reader.readexactly(9) == b"held, too"

    with_proxy(scenario)


def test_a_frozen_proxy_holds_a_bounded_amount_and_then_stops_its_sender() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as (_, writer):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            await proxy.become(FREEZE)
            writer.transport.set_write_buffer_limits(high=0)
            sending = asyncio.create_task(_send_all(writer, b"x" * MUCH * 4))
            size = writer.transport.get_write_buffer_size
            left = -await settled(lambda: -size())
            assert left > MUCH
            assert not sending.done()
            sending.cancel()

    with_proxy(scenario)


def test_a_line_with_latency_holds_a_bounded_amount_and_then_stops_its_sender() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        await proxy.become(Fault(latency_s=60.0))
        async with connected(proxy) as (_, writer):
            sending = asyncio.create_task(_send_all(writer, b"x" * MUCH * 4))
            left = -await settled(lambda: -writer.transport.get_write_buffer_size())
            assert left > MUCH
            assert echo.heard == 0
            sending.cancel()

    with_proxy(scenario)


def test_a_reset_is_a_reset_for_those_that_stand_and_for_new_ones() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)
            await proxy.become(RESET)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        with pytest.raises(ConnectionResetError):
            async with connected(proxy) as (reader, _):
                await reader.readexactly(1)
        await proxy.become(HEALTHY)
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)

    with_proxy(scenario)


def test_a_proxy_that_refuses_does_not_listen_and_comes_back_on_its_port() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        port = proxy.port
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)
            await proxy.become(REFUSE)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
        await proxy.become(HEALTHY)
        assert proxy.port == port
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer)

    with_proxy(scenario)


def test_one_connection_too_many_is_reset_and_the_others_stay() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with connected(proxy) as one, connected(proxy) as other:
            assert await said_back(*one)
            assert await said_back(*other)
            with pytest.raises(ConnectionResetError):
                async with connected(proxy) as (reader, _):
                    await reader.readexactly(1)
            assert await said_back(*one)
        while proxy.connections:
            await asyncio.sleep(0.001)
        async with connected(proxy) as again:
            assert await said_back(*again)

    with_proxy(scenario, connections=2)


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    async def main() -> None:
        async with echoing() as echo:
            gone = echo.port
        async with asyncio.timeout(20), FaultProxy(HOST, gone) as proxy, connected(proxy) as (reader, _):
            assert await reader.read() == b""

    run(main())


def test_lines_on_the_control_port_set_the_fault_and_tell_the_state() -> None:
    async def scenario(proxy: FaultProxy, echo: Echo) -> None:
        async with controlled(proxy) as port:
            reader, writer = await asyncio.open_connection(HOST, port)

            async def ask(line: str) -> str:
                writer.write(line.encode() + b"\n")
                return (await reader.readline()).decode()

            async with connected(proxy) as (there, back):
                assert await said_back(there, back)
                assert "connections=1 accepted=1" in await ask("state")
                assert (await ask("latency 200 jitter 50 rate 1000")).startswith("ok mode=pass latency_s=0.2")
                assert proxy.fault == Fault(latency_s=0.2, jitter_s=0.05, rate_bytes_s=1000)
                assert (await ask("nonsense")).startswith("error ")
                assert proxy.fault.latency_s == 0.2
                assert (await ask("healthy")).startswith("ok mode=pass")
                assert (await ask("cut")).startswith("ok mode=pass")
                assert await there.read() == b""
            assert (await ask("freeze")).startswith("ok mode=freeze")
            writer.close()

    with_proxy(scenario)


@pytest.mark.parametrize(
    "line",
    ["", "latency", "latency x", "latency -1", "latency nan", "latency 10 jitter 20", "rate 0", "rate nan", "cut -1",
     "cut 1.5", "freeze now", "healthy 1", "latency 99999"],
)  # fmt: skip
def test_a_line_that_makes_no_sense_is_said_to(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each has words of its own)
        read(line)


@given(st.integers(0, 60_000), st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_line_means_what_it_says(latency_ms: int, rate: int, cut: int) -> None:
    fault = read(f"latency {latency_ms} rate {rate} cut {cut}")
    assert fault == Fault(Mode.PASS, latency_ms / 1000, 0.0, rate, cut)
