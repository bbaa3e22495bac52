"""What comes of a request does not depend on how its bytes were cut into reads.

The connection is driven without a socket, so that the cuts are where the test makes them and not where a kernel does.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator

import pytest

from services.core.outcome import Outcome
from services.runtime.connection import Connection
from services.runtime.drain import Drain
from services.runtime.errors import Refused
from services.runtime.http import Exchange
from services.runtime.log import Log
from services.runtime.service import Service
from services.runtime.shared import Shared
from tests.runtime.corpus import CASES, LIMITS, Case, get
from tests.runtime.rig import Tape, api_of
from tests.virtual import run

BY_HANDLERS = (200, 404, 405, 429)  # the others are the guard's
MOST_CUTS = 300  # of one case: a longer one is cut at every so many bytes


async def echo(exchange: Exchange) -> None:
    mirrored = exchange.header(b"x-mirror")
    await exchange.reply(200, (mirrored + b" " if mirrored else b"") + exchange.body)


async def later(exchange: Exchange) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await echo(exchange)


async def stream(exchange: Exchange) -> None:
    await exchange.start(200, b"text/plain")
    await exchange.write(b"one")
    await asyncio.sleep(0)
    await exchange.end(b"two")


async def full(exchange: Exchange) -> None:
    raise Refused(Outcome.YIELD, "full")


HANDLERS = {"/echo": echo, "/later": later, "/stream": stream, "/full": full}


class Counting(Service):
    """Counts what it was given to answer."""

    handled = 0

    async def handle(self, exchange: Exchange) -> None:
        self.handled += 1
        await super().handle(exchange)


def service() -> Counting:
    routes = {(method, path): handler for method in ("GET", "HEAD", "POST") for path, handler in HANDLERS.items()}
    log = Log("test", stream=io.BytesIO())
    hot = {route: handler for route, handler in routes.items() if route[1] in ("/echo", "/full")}
    return Counting("test", api_of(routes), log=log, drain=Drain(), hot=hot)


async def settled() -> None:
    """All that handlers want to do has been done: each waits for a few turns at most."""
    for _ in range(12):
        await asyncio.sleep(0)


def answers(raw: bytes, heads_only: tuple[int, ...] = ()) -> list[tuple[int, bytes]]:
    """Status and body of each answer; fails where the bytes are not answers, one after another."""
    found: list[tuple[int, bytes]] = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        assert end, head
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 "), lines[0]
        status = int(lines[0].split(b" ")[1])
        if status == 100:
            continue
        headers = dict(line.split(b": ", 1) for line in lines[1:])
        body = b""
        if len(found) not in heads_only:
            body, raw = body_of(headers, raw)
        found.append((status, body))
    return found


def body_of(headers: dict[bytes, bytes], raw: bytes) -> tuple[bytes, bytes]:
    """The body, and what stands behind it."""
    if b"content-length" in headers:
        size = int(headers[b"content-length"])
        assert len(raw) >= size
        return raw[:size], raw[size:]
    if b"transfer-encoding" not in headers:
        assert headers[b"connection"] == b"close"
        return raw, b""
    body = b""
    while True:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line, 16)
        body, ended, raw = body + raw[:size], raw[size : size + 2], raw[size + 2 :]
        assert ended == b"\r\n"
        if size == 0:
            return body, raw


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """In one piece, in two in every way, and byte by byte."""
    yield [data]
    for at in range(1, len(data), len(data) // MOST_CUTS + 1):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


async def outcome(app: Counting, case: Case, pieces: list[bytes]) -> None:
    app.handled = 0
    shared = Shared(app, LIMITS, idle_timeout_s=60.0)
    tape, connection = Tape(), Connection(shared)
    connection.connection_made(tape)
    for piece in pieces:
        if not tape.closed:
            connection.data_received(piece)
        if len(pieces) == 2:
            await settled()
    await settled()
    told = answers(tape.written, case.heads_only)
    assert [status for status, _ in told] == case.statuses
    assert tape.closed is not case.open
    if case.bodies is not None:
        assert [body for _, body in told[: len(case.bodies)]] == case.bodies
    if case.open:
        before = len(tape.written)
        connection.data_received(get())
        await settled()
        assert [status for status, _ in answers(tape.written[before:])] == [200]
    else:
        assert app.handled == sum(status in BY_HANDLERS for status in case.statuses)
    connection.connection_lost(None)
    assert not shared.tasks
    assert not shared.connections


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_comes_of_a_request_is_the_same_however_its_bytes_are_cut(case: Case) -> None:
    async def main() -> None:
        app = service()
        for pieces in cuts(case.data):
            await outcome(app, case, pieces)
        app.log.close()

    run(main())
