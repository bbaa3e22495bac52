"""A server in memory that does to each request what its script says, and plans that are over in a moment."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from unittest import mock

from loadtests.load import client, connection
from loadtests.load.client import Client
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Step, Tenant
from tests import virtual

T = TypeVar("T")

TEXT = b'{"choices":[{"index":0,"text":"So it is"}],"usage":{"completion_tokens":4}}'
REFUSAL = b'{"error":{"message":"full","type":"rate_limit_error","code":"yield"}}'
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

Script = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


class Received:
    """One request as the server saw it."""

    def __init__(self, head: bytes, body: bytes, connection: int, at_once: int) -> None:
        lines = head.decode().split("\r\n")
        self.target = lines[0].split(" ")[1]
        self.headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        self.body: dict[str, Any] = json.loads(body)
        self.connection = connection
        self.at_once = at_once


class Server:
    """Reads requests one by one, hands each to its script, and keeps what it heard."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Received] = []
        self.gone = 0
        self.connections = 0
        self.at_once = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = LENGTH.search(head)
                assert found is not None
                body = await reader.readexactly(int(found[1]))
                self.at_once += 1
                heard = Received(head, body, connection, self.at_once)
                self.heard.append(heard)
                await self.script(heard, writer)
                self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()


@asynccontextmanager
async def serving(script: Script):
    server = Server(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        listener.close()


def plan(count: int = 10, **changes: Any) -> Plan:
    """So many paced requests in a fifth of a second."""
    tenant = Tenant(**{"name": "a", "steps": (Step(0, count / 0.2),), "arrivals": "paced", **changes})
    return Plan(seconds=0.2 + 0.1 / count, tenants=(tenant,), warmup_s=0, cooldown_s=0)


async def run(made: Plan, script: Script) -> tuple[Ledger, Server]:
    async with serving(script) as (server, url):
        ledger = await asyncio.wait_for(Client(made, url).run(), 30)
    return ledger, server


def steadily(main: Coroutine[Any, Any, T]) -> T:
    """To its end, in virtual time: by that the generator counts too, which has another clock than its loop's."""

    def now() -> float:
        return asyncio.get_running_loop().time()

    with mock.patch.object(client, "perf_counter", now), mock.patch.object(connection, "perf_counter", now):
        return virtual.run(main)


def endings(ledger: Ledger) -> Counter[str]:
    assert ledger.open == 0
    return Counter(row.ending for row in ledger.rows)


def reply(status: int, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def answer(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, TEXT, b"X-Weir-Level: 2", b"X-Weir-Degraded: max_tokens"))


async def refuse(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(429, REFUSAL, b"x-should-retry: true", b"retry-after-ms: 60"))


async def slowly(heard: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.15)
    writer.write(reply(200, TEXT))


async def never(heard: Received, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def close_unanswered(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.close()
    raise ConnectionError


async def cut(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, TEXT)[:-5])
    await writer.drain()
    await close_unanswered(heard, writer)


async def reset(heard: Received, writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
    raise ConnectionError


async def no_http(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")


async def twice(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(200, TEXT) * 2)


async def until_closed(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + TEXT)
    await writer.drain()
    await close_unanswered(heard, writer)


async def bare_503(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(503, b"<html>no server</html>", b"connection: close"))
    await writer.drain()
    await close_unanswered(heard, writer)


async def chunked(heard: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for at in range(0, len(TEXT), 7):
        piece = TEXT[at : at + 7]
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def events(*data: bytes) -> Script:
    """Server-sent events, 20 ms apart."""

    async def script(heard: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for each in data:
            event = b"data: " + each + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(b"0\r\n\r\n")

    return script


TOKEN = b'{"choices":[{"index":0,"text":" so"}]}'
SPOKEN_ERROR = b'{"error":{"code":"upstream_failed"}}'
