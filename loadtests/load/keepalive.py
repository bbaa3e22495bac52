"""A closed loop of clients that keep their connections, and open new ones: is a request lost?

A client sends its next request on the same connection at once, unless the last answer said `connection: close`, and
opens a new one after `again_every` requests by itself. Nothing is sent twice. *Lost* is a request without a whole
answer, or with an error that does not say when to come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

from loadtests.load.closed import post

PATH = "/v1/chat/completions"
PAUSE_S = 0.02  # after a loss: a port that refuses must not keep the core busy
STREAM_EVERY = 4
ANSWER_TOKENS = 4
RETRY = b"\r\nretry-after-ms:"


def chat(port: int, *, stream: bool, model: str | None = None) -> bytes:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": ANSWER_TOKENS, "stream": stream}
    return post(port, PATH, json.dumps(body if model is None else {**body, "model": model}).encode())


class Load:
    """`connections` clients of the router at `url`."""

    def __init__(self, url: str, *, connections: int, again_every: int = 0) -> None:
        self._port = urlsplit(url).port or 80
        self._requests = [chat(self._port, stream=stream) for stream in (False, True)]
        self._connections = connections
        self._again_every = again_every
        self.sent = self.answered = self.streamed = self.opened = 0
        self.refused: Counter[int] = Counter()
        self.lost: Counter[str] = Counter()

    async def ask(self, times: int) -> None:
        """So many requests in all."""
        await self._run(lambda: self.sent < times)

    async def until(self, over: asyncio.Event) -> None:
        await self._run(lambda: not over.is_set())

    async def _run(self, more: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._connections):
                group.create_task(self._client(more))

    async def _client(self, more: Callable[[], bool]) -> None:
        while more():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self.sent += 1
                self.lost[f"no connection: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            self.opened += 1
            try:
                await self._on_one(reader, writer, more)
            except (OSError, EOFError) as error:
                self.lost[f"cut: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_S)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _on_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, more: Callable[[], bool]
    ) -> None:
        used = 0
        while more() and not (self._again_every and used >= self._again_every):
            self.sent += 1
            used += 1
            stream = self.sent % STREAM_EVERY == 0
            writer.write(self._requests[stream])
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await _body(reader, head)
            self._count(int(head[9:12]), head, stream)
            if b"\r\nconnection: close" in head:
                return

    def _count(self, status: int, head: bytes, stream: bool) -> None:
        if status == 200:
            self.answered += 1
            self.streamed += stream
        elif RETRY in head:
            self.refused[status] += 1
        else:
            self.lost[f"status {status}"] += 1


async def _body(reader: asyncio.StreamReader, head: bytes) -> None:
    """Read a whole body. Raises EOFError if it is cut."""
    if b"\r\ntransfer-encoding: chunked" not in head:
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
    await reader.readexactly(2)
