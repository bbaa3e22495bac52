"""What a connection does, said once and played on three loops: in memory, on asyncio's and on uvloop's sockets.

The network in memory is worth as much as it is like the kernel's. So nothing here waits for a time: each sentence
waits until it has come true, on any loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from services.runtime.serve import FineClockLoop
from tests.runtime.rig import until
from tests.virtual import new_loop
from tests.world.test_network import Peer

LOOPS = [
    pytest.param(new_loop, id="memory"),
    pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.sockets),
    pytest.param(FineClockLoop, id="uvloop", marks=pytest.mark.sockets),
]
MUCH = b"x" * 16_777_216  # more than any two kernels hold
HIGH = 65_536


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    def run(main: Any) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


async def pair(*, half_open: bool = False) -> tuple[Peer, Peer]:
    """A client's and the server's end of one connection."""
    loop = asyncio.get_running_loop()
    ours = Peer(half_open=half_open)
    server = await loop.create_server(lambda: ours, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, client = await loop.create_connection(lambda: Peer(half_open=half_open), "127.0.0.1", port)
    await until(lambda: bool(ours.seen), "the connection")
    server.close()
    return client, ours


async def ended(*peers: Peer) -> None:
    for peer in peers:
        peer.transport.abort()
    for peer in peers:
        await until(lambda peer=peer: peer.seen[-1].startswith("lost"), "the end")


def test_the_end_of_one_direction_leaves_the_other_open(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair(half_open=True)
        client.transport.write(b"all I have to say")
        client.transport.write_eof()
        await until(lambda: server.seen == ["made", "eof"], "the end of data")
        assert server.data == b"all I have to say"
        server.transport.write(b"still here")
        await until(lambda: client.data == b"still here", "the answer")
        server.transport.close()
        await until(lambda: server.seen == ["made", "eof", "lost"], "the close")
        await until(lambda: client.seen[:2] == ["made", "eof"], "the end of data")
        await ended(client)

    play(main)


def test_writing_after_the_end_is_an_error_of_the_caller(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair(half_open=True)
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"one thing more")
        await ended(client, server)

    play(main)


def test_whoever_does_not_want_half_a_connection_is_closed_at_the_end_of_data(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        client.transport.write_eof()
        await until(lambda: server.seen == ["made", "eof", "lost"], "the close")
        await until(lambda: client.seen == ["made", "eof", "lost"], "and at the other end")

    play(main)


def test_a_close_sends_first_what_was_written(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        client.transport.write(MUCH)
        client.transport.close()
        await until(lambda: server.seen[-1] == "lost", "the end")
        assert server.seen == ["made", "eof", "lost"]
        assert len(server.data) == len(MUCH)
        assert client.seen[-1] == "lost"

    play(main)


def test_an_abort_throws_away_what_was_not_sent(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        server.transport.pause_reading()
        client.transport.write(MUCH)
        client.transport.abort()
        await until(lambda: client.seen[-1] == "lost", "the end")
        server.transport.resume_reading()
        await until(lambda: server.seen[-1].startswith("lost"), "and at the other end")
        assert len(server.data) < len(MUCH)

    play(main)


def test_bytes_that_nobody_has_read_make_a_close_a_reset(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        server.transport.pause_reading()
        client.transport.write(MUCH)  # some of them are at the other end when the writer must wait
        await until(lambda: "pause" in client.seen, "the pause")
        server.transport.abort()
        await until(lambda: client.seen[-1].startswith("lost"), "the reset")
        assert client.seen[-1] in ("lost ConnectionResetError", "lost BrokenPipeError")

    play(main)


def test_the_first_write_to_a_peer_that_has_closed_makes_a_reset(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair(half_open=True)
        server.transport.abort()
        await until(lambda: client.seen == ["made", "eof"], "the end of data")
        client.transport.write(b"is anybody there?")  # this one finds out
        await until(lambda: client.seen[-1].startswith("lost") or write_again(client), "the reset")
        assert client.seen[-1] in ("lost ConnectionResetError", "lost BrokenPipeError")

    play(main)


def write_again(peer: Peer) -> bool:
    """Whoever has heard the end of data learns of a reset by writing, not by reading, on some loops."""
    peer.transport.write(b"nobody?")
    return False


def test_a_writer_is_paused_by_a_reader_who_is_and_goes_on_with_it(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        server.transport.pause_reading()
        client.transport.set_write_buffer_limits(high=HIGH)
        client.transport.write(MUCH)
        await until(lambda: client.seen == ["made", "pause"], "the pause")
        assert client.transport.get_write_buffer_size() > HIGH
        server.transport.resume_reading()
        await until(lambda: client.seen == ["made", "pause", "resume"], "the rest")
        await until(lambda: len(server.data) == len(MUCH), "all of it")
        await ended(client, server)

    play(main)


def test_whoever_has_nothing_to_linger_for_closes_with_a_reset(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        client, server = await pair()
        sock = server.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.transport.abort()
        await until(lambda: client.seen == ["made", "lost ConnectionResetError"], "the reset")

    play(main)


def test_a_port_on_which_nobody_listens_refuses(play: Callable[[Any], None]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Peer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Peer, "127.0.0.1", port)

    play(main)
