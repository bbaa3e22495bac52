"""What a socket may send, and how slowly, before any handler runs."""

from __future__ import annotations

import asyncio
import json

import pytest

from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from tests.runtime.rig import ask, post, send, serving, until
from tests.virtual import run


async def echo(exchange: Exchange) -> None:
    await exchange.reply(200, exchange.body, content_type=b"application/octet-stream")


ROUTES = {("POST", "/echo"): echo, ("GET", "/echo"): echo}
LIMITS = GuardLimits(header_bytes=2048, header_count=20, url_bytes=256, body_bytes=4096, chunk_count=64)
CHUNKED = b"POST /echo HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"

REFUSED = {
    "a header that is too long": (post("/echo", b"", "x: " + "y" * 4096), 431, "headers_too_large"),
    "headers that are too many": (post("/echo", b"", *[f"x-{i}: y" for i in range(30)]), 431, "headers_too_large"),
    "headers that are too long together": (
        post("/echo", b"", *[f"x-{i}: {'y' * 200}" for i in range(12)]), 431, "headers_too_large",
    ),
    "headers without end": (b"GET /echo HTTP/1.1\r\nx: " + b"y" * 10_000, 431, "headers_too_large"),
    "a URL that is too long": (b"GET /" + b"a" * 512 + b" HTTP/1.1\r\nhost: t\r\n\r\n", 414, "url_too_long"),
    "a body declared too long": (post("/echo", b"x" * 5000), 413, "request_too_large"),
    "a body declared absurdly long": (
        b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 99999999999999\r\n\r\n", 413, "request_too_large",
    ),
    "a chunked body that grows too long": (CHUNKED + b"400\r\n" + b"x" * 1024 + b"\r\n" + b"fff\r\n" + b"x" * 4095, 413,
                                          "request_too_large"),
    "a chunked body of too many chunks": (CHUNKED + b"1\r\nx\r\n" * 100, 413, "request_too_large"),
    "a compressed body": (post("/echo", b"x", "content-encoding: gzip"), 415, "unsupported_encoding"),
    "both a length and chunks": (
        post("/echo", b"5\r\nhello\r\n0\r\n\r\n", "transfer-encoding: chunked"), 400, "invalid_request",
    ),
    "two lengths that differ": (post("/echo", b"hello", "content-length: 6"), 400, "invalid_request"),
    "a length that is no number": (b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 0x5\r\n\r\nhello", 400,
                                   "invalid_request"),
    "a negative length": (b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: -5\r\n\r\n", 400, "invalid_request"),
    "a folded header": (b"GET /echo HTTP/1.1\r\nhost: t\r\nx: a\r\n b\r\n\r\n", 400, "invalid_request"),
    "a NUL in a header": (b"GET /echo HTTP/1.1\r\nhost: t\r\nx: a\x00b\r\n\r\n", 400, "invalid_request"),
    "a space before the colon": (b"GET /echo HTTP/1.1\r\nhost : t\r\n\r\n", 400, "invalid_request"),
    "something that is not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03 hello\r\n\r\n", 400, "invalid_request"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_too_much_or_ambiguous_is_refused_and_the_connection_closed(
    data: bytes, status: int, code: str
) -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=LIMITS) as process:
            answer = await send(process.bound_port, data)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert int(head.split(b" ")[1]) == status, answer
            assert json.loads(body)["error"]["code"] == code
            assert b"connection: close" in head.lower()
            assert answer.count(b"\r\n\r\n") == 1
            again, _, _ = await ask(process.bound_port, post("/echo", b"fine"))
            assert again == 200

    run(main())


def test_a_body_at_the_limit_passes_whole_and_chunked() -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=LIMITS) as process:
            status, _, body = await ask(process.bound_port, post("/echo", b"x" * 4096))
            assert (status, body) == (200, b"x" * 4096)
            chunked = CHUNKED + b"800\r\n" + b"y" * 2048 + b"\r\n0\r\n\r\n"
            status, _, body = await ask(process.bound_port, chunked)
            assert (status, body) == (200, b"y" * 2048)

    run(main())


@pytest.mark.parametrize(
    ("part", "names"),
    [(b"GET /echo HTTP/1.1\r\nho", "headers"), (post("/echo", b"half" * 10)[:-20], "body")],
    ids=["half the headers", "half the body"],
)
def test_a_request_that_does_not_arrive_gets_408_and_the_door(part: bytes, names: str) -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=GuardLimits(headers_s=0.1, body_s=0.1)) as process:
            answer = await send(process.bound_port, part)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert f"the {names} took longer than" in answer.decode()

    run(main())


@pytest.mark.parametrize("before", [b"", b"GET /echo HTTP/1.1\r\nhost: t\r\n\r\n"], ids=["first", "second"])
def test_a_byte_now_and_then_does_not_push_the_limit_back(before: bytes) -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=GuardLimits(headers_s=0.2)) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)

            async def drip() -> None:
                writer.write(before)
                for byte in b"GET /echo HTTP/1.1\r\nx-slow: " + b"y" * 10_000:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            async with asyncio.timeout(20):
                assert b"HTTP/1.1 408 " in await reader.read()
            dripping.cancel()
            writer.close()

    run(main())


def test_a_client_that_is_still_sending_can_read_why_it_was_refused() -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=LIMITS) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n")
            for _ in range(100):
                writer.write(b"x" * 1000)
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 413 ")
            writer.close()

    run(main())


def test_a_connection_that_asks_nothing_is_closed_without_a_word() -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=GuardLimits(headers_s=0.05)) as process:
            assert await send(process.bound_port, b"") == b""

    run(main())


def test_a_connection_at_rest_is_closed_after_the_idle_timeout() -> None:
    async def main() -> None:
        async with serving(ROUTES, idle_timeout_s=1) as process:
            answer = await send(process.bound_port, b"GET /echo HTTP/1.1\r\nhost: t\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")  # and then `send` returned, so the server closed

    run(main())


def test_more_connections_than_the_bound_are_refused_at_once() -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=GuardLimits(connections=2)) as process:
            held = [await asyncio.open_connection("127.0.0.1", process.bound_port) for _ in range(2)]
            for _, writer in held:
                writer.write(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n")
            for reader, _ in held:
                await reader.readuntil(b"\r\n\r\n")
            answer = await send(process.bound_port, b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 429 ")
            for _, writer in held:
                writer.close()

    run(main())


def test_a_client_that_never_reads_is_cut_off_and_its_handler_ends() -> None:
    ended: list[str] = []

    async def pour(exchange: Exchange) -> None:
        exchange.on_gone(asyncio.current_task().cancel)  # type: ignore[union-attr]  # a handler runs in a task
        try:
            await exchange.start(200, b"text/plain")
            while True:
                await exchange.write(b"x" * 16_384)
        finally:
            ended.append("pour")

    async def main() -> None:
        limits = GuardLimits(write_stall_s=0.2)
        async with serving({("GET", "/pour"): pour}, limits=limits) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /pour HTTP/1.1\r\nhost: t\r\n\r\n")
            await until(lambda: ended, "the handler's end")
            writer.close()

    run(main())


def test_a_pipelined_body_that_never_comes_is_not_waited_for() -> None:
    async def main() -> None:
        async with serving(ROUTES, limits=GuardLimits(body_s=0.1)) as process:
            half = b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nha"
            answer = await send(process.bound_port, b"GET /echo HTTP/1.1\r\nhost: t\r\n\r\n" + half)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"HTTP/1.1 408 " in answer

    run(main())


PADDING = {
    "trailers": b"0\r\n" + b"x: y\r\n" * 200,
    "one trailer": b"0\r\nx: " + b"y" * 1000,
    "an extension of a chunk": b"2;" + b"x" * 1000,
}


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING.keys())
def test_what_pads_a_body_without_end_is_refused(padding: bytes) -> None:
    async def main() -> None:
        limits = GuardLimits(body_bytes=4096, chunk_count=64, header_bytes=2048)
        async with serving(ROUTES, limits=limits) as process:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(CHUNKED + padding)
            answer = asyncio.create_task(reader.read())
            async with asyncio.timeout(20):
                while not answer.done():
                    writer.write(padding[-6:] * 100)
                    await asyncio.sleep(0.001)
            assert (await answer).startswith(b"HTTP/1.1 413 ")
            writer.close()

    run(main())


def test_a_trailer_does_not_speak_for_its_request() -> None:
    named: list[bytes | None] = []

    async def name(exchange: Exchange) -> None:
        named.append(exchange.header(b"x-tenant"))
        await exchange.reply(200, b"")

    async def main() -> None:
        async with serving({("POST", "/name"): name}) as process:
            head = CHUNKED.replace(b"/echo", b"/name").replace(b"host: t", b"host: t\r\nx-tenant: small")
            await send(process.bound_port, head + b"2\r\nhi\r\n0\r\nx-tenant: large\r\n\r\n")
            assert named == [b"small"]

    run(main())


def test_a_slow_body_holds_a_socket_and_never_a_handler() -> None:
    async def main() -> None:
        async with serving(ROUTES) as process:
            _, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhe")
            status, _, _ = await ask(process.bound_port, post("/echo", b"other"))
            assert status == 200
            assert process.drain.inflight == 0
            writer.close()

    run(main())
