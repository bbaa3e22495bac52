"""In which order requests are answered, who is told that a client left, and what an answer may look like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.runtime.connection import MAX_PIPELINED, Connection
from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange, Handler
from services.runtime.shared import Shared
from tests.runtime.corpus import get
from tests.runtime.rig import Tape, ask, build, post, send, serving, until
from tests.virtual import run


async def echo(exchange: Exchange) -> None:
    await exchange.reply(200, exchange.body, content_type=b"application/octet-stream")


@asynccontextmanager
async def driven(routes: Mapping[tuple[str, str], Handler], **process: Any) -> AsyncIterator[tuple[Tape, Connection]]:
    """A connection without a socket."""
    built = build(routes, **process)
    tape, connection = Tape(), Connection(Shared(built.listener.app, GuardLimits(), idle_timeout_s=60.0))
    connection.connection_made(tape)
    yield tape, connection
    connection.connection_lost(None)
    built.log.close()


ROUTES = {("POST", "/echo"): echo, ("GET", "/echo"): echo}


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_client_that_leaves_is_noticed_at_once(streamed: bool) -> None:
    noticed: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        if streamed:
            await exchange.start(200, b"text/plain")
            await exchange.write(b"first")
        gone = asyncio.Event()
        exchange.on_gone(gone.set)
        await gone.wait()
        noticed.append(exchange.gone)

    async def main() -> None:
        async with serving({("GET", "/wait"): wait}) as process:
            _, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(b"GET /wait HTTP/1.1\r\nhost: t\r\n\r\n")
            await until(lambda: process.drain.inflight == 1, "the handler's start")
            writer.close()
            await until(lambda: noticed == [True], "the notice")
            await until(lambda: process.drain.inflight == 0, "the end")

    run(main())


def test_pipelined_requests_are_answered_in_order_with_their_own_bodies() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            one = b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\none"
            answer = await send(process.bound_port, one + one.replace(b"one", b"two") + post("/echo", b"three"))
            bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
            assert bodies == [b"one", b"two", b"three"]

    run(main())


def test_an_upgrade_is_declined_by_answering_in_http_1_1_and_closing() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            asked = b"GET /echo HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
            answer = await send(process.bound_port, asked)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer

    run(main())


def test_expect_continue_is_honoured_before_the_body_comes() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n")
            async with asyncio.timeout(20):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(b"hello")
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
            writer.close()

    run(main())


def test_a_client_that_leaves_is_noticed_although_it_has_sent_more_behind() -> None:
    noticed: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        gone = asyncio.Event()
        exchange.on_gone(gone.set)
        await gone.wait()
        noticed.append(exchange.gone)

    async def main() -> None:
        async with serving({("GET", "/wait"): wait}) as process:
            _, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(b"GET /wait HTTP/1.1\r\nhost: t\r\n\r\n" * 3 + b"GET /wa")
            await until(lambda: process.drain.inflight == 1, "the handler's start")
            writer.close()
            await until(lambda: noticed == [True], "the notice, and one only")
            await until(lambda: process.drain.inflight == 0, "the end")

    run(main())


@pytest.mark.parametrize("requests", [1, 2])
def test_nothing_is_timed_while_an_answer_is_under_way_and_everything_is_afterwards(requests: int) -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await release.wait()
        await exchange.reply(200, b"")

    async def main() -> None:
        limits = GuardLimits(headers_s=0.05, body_s=0.05)
        async with serving({("GET", "/wait"): wait}, limits=limits) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(get(b"/wait") * requests + b"GET /wa")
            await until(lambda: process.drain.inflight == 1, "the handler's start")
            asyncio.get_running_loop().call_later(0.3, release.set)
            async with asyncio.timeout(20):
                answer = await reader.read()
            statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
            assert statuses == [b"200"] * requests + [b"408"]
            writer.close()

    run(main())


def test_an_answer_without_its_end_is_cut_and_not_made_to_look_whole() -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        await exchange.write(b"first")
        raise RuntimeError("died")

    async def forgets(exchange: Exchange) -> None:
        pass

    async def main() -> None:
        async with serving({("GET", "/half"): half, ("GET", "/forgets"): forgets}) as process:
            answer = await send(process.bound_port, b"GET /half HTTP/1.1\r\nhost: t\r\n\r\n")
            assert answer.endswith(b"\r\n\r\n5\r\nfirst\r\n")
            status, _, _ = await ask(process.bound_port, post("/forgets", b"").replace(b"POST", b"GET"))
            assert status == 500

    run(main())


def test_a_header_cannot_be_smuggled_into_an_answer() -> None:
    async def careless(exchange: Exchange) -> None:
        value = exchange.body
        await exchange.reply(200, b"", headers=[(b"x-said", value)])

    async def main() -> None:
        async with serving({("POST", "/say"): careless}) as process:
            for said in (b"a\r\nset-cookie: b", b"a\nb: c", b"a\rb: c", b"\r\n\r\nHTTP/1.1 200 OK"):
                status, head, _ = await ask(process.bound_port, post("/say", said))
                assert (status, b"x-said" in head) == (500, False)

    run(main())


def test_a_half_close_behind_a_request_gets_what_was_answered_at_once() -> None:
    async def main() -> None:
        async with driven(ROUTES, eager=["/echo"]) as (tape, connection):
            connection.data_received(get())
            assert not connection.eof_received()
            assert tape.written.startswith(b"HTTP/1.1 200 ")

    run(main())


def test_a_connection_at_rest_leaves_at_once_and_a_busy_one_with_its_answer() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await release.wait()
        await exchange.reply(200, b"")

    async def main() -> None:
        async with driven({("GET", "/wait"): wait}) as (tape, connection):
            connection.shutdown()
            assert tape.closed
        async with driven({("GET", "/wait"): wait}) as (tape, connection):
            connection.data_received(get(b"/wait"))
            connection.shutdown()
            assert not tape.closed
            release.set()
            await until(lambda: tape.closed, "the close")
            assert b"connection: close\r\n" in tape.written

    run(main())


def test_a_writer_waits_while_its_client_does_not_read() -> None:
    pieces: list[int] = []

    async def count(exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        for number in range(3):
            await exchange.write(b"x")
            pieces.append(number)
        await exchange.end()

    async def main() -> None:
        async with driven({("GET", "/count"): count}) as (tape, connection):
            connection.pause_writing()
            connection.data_received(get(b"/count"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (pieces, tape.written) == ([], b"")
            connection.resume_writing()
            await until(lambda: tape.written.endswith(b"0\r\n\r\n"), "the end")
            assert pieces == [0, 1, 2]

    run(main())


def test_a_pipeline_without_end_is_read_no_faster_than_it_is_answered() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await release.wait()
        await exchange.reply(200, b"")

    async def main() -> None:
        async with driven({("GET", "/wait"): wait}) as (tape, connection):
            for waiting in range(MAX_PIPELINED + 1):
                assert tape.reading, f"{waiting} wait"
                connection.data_received(get(b"/wait"))
            connection.data_received(get(b"/wait"))
            assert not tape.reading
            release.set()
            await until(lambda: tape.written.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 2, "all the answers")
            assert tape.reading

    run(main())
