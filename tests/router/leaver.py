"""A client as a raw connection, which sends as much as it is told to, and leaves in one of three ways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from tests.wire import Wire


class Way(Enum):
    """How a client leaves."""

    FIN = "fin"
    RST = "rst"
    HALF = "half"


class Client:
    """One raw connection."""

    def __init__(self, id: str, way: Way) -> None:
        self.id = id
        self.way = way
        self.left_at = 0.0
        self.seen = b""
        self._wire = Wire()

    async def connect(self, port: int) -> None:
        await self._wire.connect(port)

    async def send(self, data: bytes) -> None:
        self._wire.send(data)

    async def read_until(self, enough: Callable[[bytes], bool]) -> bytes:
        """What has come, once it is enough. Fails if the connection ends before."""
        while not enough(self.seen):
            piece = await self._wire.recv()
            assert piece, f"the connection ended after {self.seen!r}"
            self.seen += piece
        return self.seen

    async def read_to_end(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(20):
            while piece := await self._wire.recv():
                self.seen += piece
        return self.seen

    def leave(self) -> None:
        """In its own way. One that closes its half only stays to read."""
        self.left_at = asyncio.get_running_loop().time()
        if self.way is Way.HALF:
            self._wire.shut()
        elif self.way is Way.RST:
            self._wire.reset()
        else:
            self._wire.close()

    def close(self) -> None:
        self._wire.close()


def asking(id: str, *, ask: bool = False, stream: bool = False, tenant: str = "demo", **headers: str) -> bytes:
    """One request as it goes over the wire."""
    question: dict[str, Any] = (
        {"query": "why?"} if ask else {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
    )
    body = json.dumps({**question, "stream": stream}).encode()
    lines = [
        f"POST {'/ask' if ask else '/v1/chat/completions'} HTTP/1.1", "host: localhost", f"x-request-id: {id}",
        f"x-tenant: {tenant}", f"content-length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answered_whole(seen: bytes) -> bool:
    """Whether an answer has come to its end, streamed or not."""
    head, end, body = seen.partition(b"\r\n\r\n")
    if not end:
        return False
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)
