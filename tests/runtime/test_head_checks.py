"""What a listener judges by a request's head, before its body is read."""

from __future__ import annotations

import pytest

from services.runtime.errors import BadInput, WeirError
from services.runtime.http import Exchange
from tests.runtime.rig import ask, post, send, serving
from tests.virtual import run


async def echo(exchange: Exchange) -> None:
    await exchange.reply(200, exchange.body)


ROUTES = {("POST", "/echo"): echo, ("GET", "/echo"): echo}


def only_with_a_badge(exchange: Exchange, body_bytes: int) -> WeirError | None:
    if exchange.header(b"badge") == b"1":
        return None
    return BadInput(f"no badge, {body_bytes} bytes", status=403, code="forbidden")


def test_a_request_with_a_small_body_is_refused_and_the_connection_goes_on() -> None:
    async def main() -> None:
        async with serving(ROUTES, checks=(only_with_a_badge,)) as process:
            several = (
                b"POST /echo HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n\r\nhi"
                b"POST /echo HTTP/1.1\r\nhost: t\r\nbadge: 1\r\ncontent-length: 2\r\n\r\nhi"
                b"GET /echo HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
            )
            answer = await send(process.bound_port, several)
            assert [each[:3] for each in answer.split(b"HTTP/1.1 ")[1:]] == [b"403", b"200", b"403"]
            assert b"no badge, 2 bytes" in answer
            assert b"no badge, 0 bytes" in answer

    run(main())


@pytest.mark.parametrize("framing", ["content-length: 500000", "transfer-encoding: chunked"])
def test_a_large_body_is_refused_before_it_is_sent(framing: str) -> None:
    async def main() -> None:
        async with serving(ROUTES, checks=(only_with_a_badge,)) as process:
            head = f"POST /echo HTTP/1.1\r\nhost: t\r\n{framing}\r\n\r\n".encode()
            answer = await send(process.bound_port, head)
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"connection: close" in answer

    run(main())


def test_a_check_that_lets_in_changes_nothing() -> None:
    async def main() -> None:
        async with serving(ROUTES, checks=(only_with_a_badge,)) as process:
            status, _, body = await ask(process.bound_port, post("/echo", b"x" * 100_000, "badge: 1"))
            assert (status, body) == (200, b"x" * 100_000)

    run(main())
