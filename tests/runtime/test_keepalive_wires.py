"""The client pool before hostile servers and at the edges of time, without sockets: every order can be played."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.runtime.keepalive import IDLE_S, Pool
from services.runtime.upstream import AnswerTooLarge, ConnectionLost, NoDescriptors, PoolFull, Truncated, UpstreamError
from services.runtime.upstream_connection import HIGH_WATER_BYTES, MAX_HEAD_BYTES, MAX_INTERIM
from tests.runtime.wires import Wire, turns, wired
from tests.virtual import run

OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
READ_BYTES = 262_144
"""The largest read of a socket, with uvloop."""
LIMIT_BYTES = 1 << 20

Scenario = Callable[[Pool, list[Wire]], Awaitable[None]]


def play(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        async with wired(**options) as (pool, wires):
            await scenario(pool, wires)

    run(main())


async def ask(pool: Pool, method: bytes = b"POST", body: bytes = b"{}") -> bytes:
    with await pool.request(method, b"/x", body=body if method == b"POST" else b"") as reply:
        return await reply.read(LIMIT_BYTES)


async def begin(pool: Pool, method: bytes = b"POST") -> asyncio.Task[bytes]:
    """A request that has been written, if it could be."""
    task = asyncio.create_task(ask(pool, method))
    await turns()
    return task


async def used(pool: Pool, wires: list[Wire]) -> Wire:
    """A connection that has been used and is idle."""
    task = await begin(pool)
    wires[-1].feed(HELLO)
    assert await task == b"hello"
    return wires[-1]


# ---- a request is written once


@pytest.mark.parametrize("error", [None, ConnectionResetError()], ids=["closed", "reset"])
def test_a_post_that_was_written_is_never_sent_again_by_the_pool(error: Exception | None) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        await used(pool, wires)
        task = await begin(pool)
        wires[0].end(error)
        with pytest.raises(ConnectionLost) as lost:
            await task
        assert lost.value.sent
        assert (len(wires), wires[0].requests, pool.in_use) == (1, 2, 0)

    play(scenario)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_what_may_be_repeated_is_sent_again_once(method: bytes) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        await used(pool, wires)
        task = await begin(pool, method)
        wires[0].end()
        await turns()
        assert (len(wires), wires[1].requests) == (2, 1)
        wires[1].end()
        with pytest.raises(ConnectionLost):
            await task
        assert len(wires) == 2

    play(scenario)


def test_a_connection_whose_end_has_come_is_never_used_again() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        tasks = [await begin(pool) for _ in range(4)]
        for wire in wires:
            wire.feed(HELLO)
        await asyncio.gather(*tasks)
        for wire in list(wires):
            wire.protocol.eof_received()  # the server was restarted: all of them end at once
        task = await begin(pool)
        assert [wire.requests for wire in wires] == [1, 1, 1, 1, 1]
        wires[4].feed(HELLO)
        assert await task == b"hello"

    play(scenario)


def test_a_connection_that_closes_before_the_request_is_written_is_replaced() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        first = await used(pool, wires)
        task = asyncio.create_task(ask(pool))
        await asyncio.sleep(0)  # the request stands in the outbox
        first.end()
        await turns()
        assert (first.requests, wires[1].requests) == (1, 1)
        wires[1].feed(HELLO)
        assert await task == b"hello"

    play(scenario)


def test_an_idle_connection_is_closed_before_common_servers_close_it() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        first = await used(pool, wires)
        await asyncio.sleep(IDLE_S - 0.1)
        task = await begin(pool)
        assert first.requests == 2, "it was closed too early"
        first.feed(HELLO)
        await task
        await asyncio.sleep(IDLE_S - 0.1)
        assert not first.closed, "it was idle since its last answer only"
        await asyncio.sleep(0.2)
        assert first.closed
        assert IDLE_S < 5.0

    play(scenario)


def test_a_connection_that_is_stale_is_not_used_though_its_timer_is_late() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        first = await used(pool, wires)
        first.protocol.parked_at -= IDLE_S  # the process stood still, and this request runs before the timer
        task = await begin(pool)
        assert (first.requests, first.closed, len(wires)) == (1, True, 2)
        wires[1].feed(HELLO)
        await task

    play(scenario)


def test_each_idle_connection_has_its_own_time() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        tasks = [await begin(pool) for _ in range(2)]
        wires[0].feed(HELLO)
        await asyncio.sleep(1.0)
        wires[1].feed(HELLO)
        await asyncio.gather(*tasks)
        await asyncio.sleep(IDLE_S - 0.5)
        assert [wire.closed for wire in wires] == [True, False]
        await asyncio.sleep(1.0)
        assert [wire.closed for wire in wires] == [True, True]

    play(scenario)


# ---- what is ours and not the server's


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_a_lack_of_descriptors_is_told_apart_from_a_server_that_is_gone(number: int) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        with pytest.raises(NoDescriptors) as lacking:
            await ask(pool)
        assert (lacking.value.sent, pool.in_use) == (False, 0)
        assert isinstance(lacking.value, PoolFull)

    play(scenario, refuse=lambda: OSError(number, os.strerror(number)))


def test_a_name_that_cannot_be_looked_up_for_want_of_descriptors_is_ours_as_well() -> None:
    failed = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        none_left = mock.patch("socket.socket", side_effect=OSError(errno.EMFILE, "Too many open files"))
        with none_left, pytest.raises(NoDescriptors):
            await ask(pool)
        with pytest.raises(UpstreamError) as unknown:
            await ask(pool)
        assert not isinstance(unknown.value, PoolFull)

    play(scenario, refuse=lambda: failed)


def test_a_refused_connection_is_the_servers_and_its_address_is_not_for_clients() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        with pytest.raises(UpstreamError, match=r"worker\.test") as refused:
            await ask(pool)
        assert not isinstance(refused.value, PoolFull)
        assert "worker.test" not in refused.value.public

    play(scenario, refuse=lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))


# ---- bounds

ENDLESS = {
    "a status line": (b"HTTP/1.1 200 ", b"x"),
    "a header's name": (OK, b"x"),
    "a header's value": (OK + b"x: ", b"x"),
    "headers": (OK, b"x: y\r\n"),
    "a chunk's extension": (CHUNKED + b"5;", b"x"),
    "a chunk's size": (CHUNKED, b"0"),
    "a trailer's value": (CHUNKED + b"5\r\nhello\r\n0\r\nx: ", b"x"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n", b"x: y\r\n"),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers of answers before the answer": (b"", b"HTTP/1.1 103 Early Hints\r\nx: " + b"y" * 8000 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("read_bytes", [100, 16_384, READ_BYTES])
@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS.keys())
def test_what_has_no_end_is_cut_off(start: bytes, more: bytes, read_bytes: int) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        task = await begin(pool)
        wire, fed = wires[0], len(start)
        wire.feed(start)
        piece = more * (read_bytes // len(more) or 1)
        while not wire.closed and fed < 2 * READ_BYTES:
            wire.feed(piece)
            fed += len(piece)
            await asyncio.sleep(0)
        assert fed <= MAX_HEAD_BYTES + max(read_bytes, len(piece)) + len(start)
        with pytest.raises(UpstreamError):
            await task
        assert (wire.closed, pool.in_use) == (True, 0)

    play(scenario)


def test_a_few_answers_before_the_answer_are_taken_and_more_are_not() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        task = await begin(pool)
        wires[0].feed(b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_INTERIM + HELLO)
        assert await task == b"hello"
        task = await begin(pool)
        wires[0].feed(b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM + 1) + HELLO)
        with pytest.raises(AnswerTooLarge):
            await task

    play(scenario)


def test_a_body_over_its_readers_limit_is_of_a_class_of_its_own() -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        task = await begin(pool)
        wires[0].feed(OK + b"content-length: 99999999\r\n\r\n")
        for _ in range(LIMIT_BYTES // 65_536 + 1):
            wires[0].feed(b"x" * 65_536)
            await turns(2)
        with pytest.raises(AnswerTooLarge):
            await task
        assert wires[0].closed

    play(scenario)


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_a_body_that_is_not_read_stops_the_socket_however_small_its_chunks(size: int) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        asking = asyncio.create_task(pool.request(b"POST", b"/x", body=b"{}"))
        await turns()
        wires[0].feed(CHUNKED)
        reply = await asking
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        fed = 0
        while wires[0].reading and fed < 8 * HIGH_WATER_BYTES:
            wires[0].feed(chunk)
            fed += size + 64
        assert fed <= HIGH_WATER_BYTES + size + 64
        reply.close()

    play(scenario)


# ---- any cut of an answer means the same, and no answer is taken for another's

ANSWERS = st.one_of(
    st.binary(max_size=300).map(lambda body: (OK + b"content-length: %d\r\n\r\n%b" % (len(body), body), body)),
    st.lists(st.binary(min_size=1, max_size=40), max_size=8).map(
        lambda chunks: (
            CHUNKED + b"".join(b"%x;a=b\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\nx: y\r\n\r\n",
            b"".join(chunks),
        )
    ),
)
BEFORE = st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 3])


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *[place % (len(data) + 1) for place in cuts]})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=60, deadline=None)
@given(answer=ANSWERS, before=BEFORE, cuts=st.lists(st.integers(0, 2000), max_size=12), each=st.booleans())
def test_any_cut_of_an_answer_gives_the_same_and_leaves_a_connection_that_works(
    answer: tuple[bytes, bytes], before: bytes, cuts: list[int], each: bool
) -> None:
    wire_bytes, body = before + answer[0], answer[1]
    pieces = [wire_bytes[i : i + 1] for i in range(len(wire_bytes))] if each else cut(wire_bytes, cuts)

    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        task = await begin(pool)
        wires[0].feed(*pieces)
        assert await task == body
        task = await begin(pool)
        wires[0].feed(HELLO)
        assert await task == b"hello"
        assert (len(wires), pool.in_use) == (1, 0)

    play(scenario)


@settings(max_examples=60, deadline=None)
@given(answer=ANSWERS, keep=st.integers(0, 2000), cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_an_answer_that_is_cut_short_is_never_taken_for_a_whole_one(
    answer: tuple[bytes, bytes], keep: int, cuts: list[int]
) -> None:
    short = answer[0][: keep % len(answer[0])]

    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        task = await begin(pool)
        wires[0].feed(*cut(short, cuts))
        wires[0].end()
        with pytest.raises(Truncated if short else ConnectionLost):
            await task
        assert pool.in_use == 0

    play(scenario)


PARTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            OK, HELLO, CHUNKED, b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"5\r\nevil!\r\n", b"content-length: 4\r\n\r\nevil",
            b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", b"HTTP/0.9 200 OK\r\n",
            b"transfer-encoding: gzip\r\n", b"connection: close\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b" folded\r\n",
        ]
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=8), cuts=st.lists(st.integers(0, 500), max_size=6))
def test_a_hostile_answer_never_hangs_and_is_never_passed_to_the_next_request(
    parts: list[bytes], cuts: list[int]
) -> None:
    async def scenario(pool: Pool, wires: list[Wire]) -> None:
        first = await begin(pool)
        wires[0].feed(*cut(b"".join(parts), cuts))
        await turns()
        if not first.done():
            wires[0].end()
        with suppress(UpstreamError):
            async with asyncio.timeout(10):
                await first
        second = await begin(pool)
        wires[-1].feed(OK + b"content-length: 4\r\n\r\nmine")
        with suppress(UpstreamError):  # what was left of the first answer may have made the connection useless
            assert await second == b"mine"
        assert pool.in_use == 0

    play(scenario)
