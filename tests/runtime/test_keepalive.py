"""The keep-alive pool, held to what aiohttp makes of the same bytes.

A server plays back scripted bytes. Where aiohttp gives an answer, ours must give the same one; where aiohttp raises,
ours must raise; and a connection is reused only after an answer that was whole.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.keepalive import Pool, Reply
from services.runtime.upstream import Truncated, UpstreamError
from tests.runtime.rig import until
from tests.virtual import run

OK = b"HTTP/1.1 200 OK\r\n"


@dataclass
class Server:
    """Answers each request with the next script: pieces of bytes, each its own write, then stay or close."""

    pieces: list[bytes]
    close: bool = False
    reset: bool = False
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    ended: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.reset:
                    writer.transport.abort()
                    return
                if self.close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()


@asynccontextmanager
async def playing(*pieces: bytes, close: bool = False, reset: bool = False) -> AsyncIterator[Server]:
    server = Server(list(pieces), close, reset)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


@asynccontextmanager
async def pool_to(port: int, **options: int) -> AsyncIterator[Pool]:
    pool = Pool(f"http://127.0.0.1:{port}/v1", **{"max_connections": 8, **options})
    try:
        async with asyncio.timeout(20):
            yield pool
    finally:
        pool.close()


async def ours(port: int) -> tuple[int, bytes]:
    async with pool_to(port) as pool:
        with await pool.request(b"POST", b"/x", body=b"{}") as reply:
            return reply.status, await reply.read(1 << 20)


class InMemory(aiohttp.TCPConnector):
    """Connects by the loop, which joins the two in memory: aiohttp itself would open a socket first."""

    async def _wrap_create_connection(self, factory: Any, *, addr_infos: Any, **_: Any) -> Any:
        return await asyncio.get_running_loop().create_connection(factory, *addr_infos[0][4])


async def theirs(port: int) -> tuple[int, bytes]:
    url = f"http://127.0.0.1:{port}/v1/x"
    async with aiohttp.ClientSession(connector=InMemory()) as session, session.post(url, data=b"{}") as reply:
        return reply.status, await reply.read()


SCRIPTS = {
    "a fixed length": ([OK + b"content-length: 5\r\n\r\nhello"], False),
    "an empty body": ([OK + b"content-length: 0\r\n\r\n"], False),
    "no content": ([b"HTTP/1.1 204 No Content\r\n\r\n"], False),
    "head and body apart": ([OK + b"content-length: 5\r\n\r\n", b"hel", b"lo"], False),
    "a head cut in two": ([OK + b"content-le", b"ngth: 5\r\n\r\nhello"], False),
    "chunks": ([OK + b"transfer-encoding: chunked\r\n\r\n", b"3\r\nhel\r\n", b"2\r\nlo\r\n0\r\n\r\n"], False),
    "chunks cut anywhere": (
        [OK + b"transfer-encoding: chunked\r\n\r\n5", b"\r\nhe", b"llo\r", b"\n0\r\n", b"\r\n"],
        False,
    ),
    "chunk extensions and trailers": (
        [OK + b"transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n"],
        False,
    ),
    "a body that ends with the connection": ([OK + b"\r\nhello"], True),
    "connection: close": ([OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello"], True),
    "an error status": ([b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops"], False),
    "100 Continue before it": ([b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 2\r\n\r\nok"], False),
    "HTTP/1.0": ([b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"], True),
}


@pytest.mark.parametrize(("pieces", "close"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_an_answer_is_read_as_aiohttp_reads_it(pieces: list[bytes], close: bool) -> None:
    async def main() -> None:
        async with playing(*pieces, close=close) as server:
            assert await ours(server.port) == await theirs(server.port)

    run(main())


BROKEN = {
    "closed before a byte": ([], True, False),
    "closed in the head": ([OK + b"content-le"], True, False),
    "closed in a fixed body": ([OK + b"content-length: 5\r\n\r\nhel"], True, False),
    "closed between chunks": ([OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n"], True, False),
    "closed in a chunk": ([OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel"], True, False),
    "reset in the body": ([OK + b"content-length: 5\r\n\r\nhel"], False, True),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.9\r\n\r\n"], True, False),
    "a chunk size that is no number": (
        [OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"],
        True,
        False,
    ),
    "two lengths": ([OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!"], True, False),
}


@pytest.mark.parametrize(("pieces", "close", "reset"), BROKEN.values(), ids=BROKEN.keys())
def test_an_answer_that_is_cut_or_malformed_raises_as_with_aiohttp(
    pieces: list[bytes], close: bool, reset: bool
) -> None:
    async def main() -> None:
        async with playing(*pieces, close=close, reset=reset) as server:
            with pytest.raises(UpstreamError):
                await ours(server.port)
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await theirs(server.port)

    run(main())


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_however_the_bytes_are_cut_the_body_is_the_same(chunks: list[bytes], cuts: list[int]) -> None:
    wire = OK + b"transfer-encoding: chunked\r\n\r\n"
    wire += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    edges = sorted({0, len(wire), *[cut for cut in cuts if cut < len(wire)]})
    pieces = [wire[a:b] for a, b in itertools.pairwise(edges)]

    async def main() -> None:
        async with playing(*pieces) as server:
            assert await ours(server.port) == (200, b"".join(chunks))

    run(main())


def using(scenario: Callable[[Server, Pool], Awaitable[None]], *pieces: bytes, close: bool = False) -> None:
    async def main() -> None:
        async with playing(*pieces, close=close) as server, pool_to(server.port, max_connections=2) as pool:
            await scenario(server, pool)

    run(main())


async def whole(pool: Pool) -> bytes:
    with await pool.request(b"POST", b"/x", body=b"{}") as reply:
        return await reply.read(1 << 20)


HELLO = OK + b"content-length: 5\r\n\r\nhello"


def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        assert [await whole(pool) for _ in range(5)] == [b"hello"] * 5
        assert (server.connections, pool.in_use) == (1, 0)
        assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")

    using(scenario, HELLO)


def test_a_connection_that_the_server_closed_at_rest_is_replaced_silently() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        assert await whole(pool) == b"hello"
        await until(lambda: "0 idle" in repr(pool), "the pool's notice")
        assert await whole(pool) == b"hello"
        assert server.connections == len(server.requests) == 2

    using(scenario, HELLO, close=True)


def test_an_unfinished_reply_that_is_closed_tells_the_server_at_once() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        reply = await pool.request(b"POST", b"/x")
        assert await reply.next_piece() == b"hel"
        reply.close()
        await until(lambda: server.ended == 1, "the server's notice")
        assert pool.in_use == 0

    using(scenario, OK + b"content-length: 500\r\n\r\nhel")


def test_a_cancelled_request_gives_its_connection_up() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        task = asyncio.create_task(whole(pool))
        await until(lambda: len(server.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.ended == 1)
        assert pool.in_use == 0

    using(scenario, OK)


def test_bytes_after_the_answer_are_never_taken_for_the_next_one() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        for _ in range(3):
            try:
                assert await whole(pool) == b"hello"
            except UpstreamError:
                continue
        assert server.connections > 1

    using(scenario, HELLO + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")


def test_a_lingering_reply_is_reused_when_its_end_comes() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        reply = await pool.request(b"POST", b"/x")
        assert await reply.next_piece() is not None
        reply.linger()
        assert pool.in_use == 0  # whoever comes next is not kept waiting for the end
        await until(lambda: not pool.lingering, "the end")
        assert await whole(pool) == b"hello"
        assert server.connections == 1

    using(scenario, OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", b"", b"0\r\n\r\n")


def test_more_than_the_bound_is_refused_and_not_queued() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        held: list[Reply] = [await pool.request(b"POST", b"/x") for _ in range(2)]
        with pytest.raises(UpstreamError, match="2 connections") as refused:
            await pool.request(b"POST", b"/x")
        assert not refused.value.sent
        for reply in held:
            reply.close()

    using(scenario, OK + b"content-length: 500\r\n\r\nhel")


def test_a_body_over_the_limit_is_refused() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        with await pool.request(b"POST", b"/x") as reply, pytest.raises(UpstreamError, match="exceeds 4 bytes"):
            await reply.read(4)

    using(scenario, HELLO)


def test_nobody_listening_is_told_apart_from_a_failure_after_sending() -> None:
    async def main() -> None:
        async with playing(HELLO) as server:
            port = server.port
        async with pool_to(port) as pool:
            with pytest.raises(UpstreamError, match="no connection") as refused:
                await whole(pool)
            assert not refused.value.sent
            assert not isinstance(refused.value, Truncated)

    run(main())


def test_an_address_that_is_none_is_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="not an http"):
        Pool("ftp://example", max_connections=1)


def test_a_reply_that_is_discarded_takes_its_connection_with_it() -> None:
    async def scenario(server: Server, pool: Pool) -> None:
        assert await whole(pool) == b"hello"
        reply = await pool.request(b"POST", b"/x")
        reply.discard()
        reply.discard()
        assert pool.in_use == 0
        await until(lambda: server.ended == 1, "the server's notice")
        assert await whole(pool) == b"hello"
        assert server.connections == 2

    using(scenario, HELLO)
