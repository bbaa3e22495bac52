"""Silence a Redis or Valkey temporarily with `CLIENT PAUSE`, one second at a time, so that it recovers by itself.

Under `CLIENT PAUSE ms ALL` a server accepts connections and bytes but does not answer, like a frozen cache. The pause
cannot be cancelled (`CLIENT UNPAUSE` would be paused too). So each pause is short and the next is sent before it ends:
the server executes it first when it resumes. Closing the connection drops the pending command, and the server answers
again after a second.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote, urlsplit

SLICE_S = 1.0
CONNECT_WITHIN_S = 2.0
ANSWER_WITHIN_S = SLICE_S + 4.0
MAX_LINE_BYTES = 1024


class NotSilenced(Exception):
    """The server cannot be paused; the message says why."""


class SilentCache:
    """The cache behind a redis:// address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "redis" or not parts.hostname:
            raise NotSilenced("REDIS_URL is not a redis:// address")
        self._host, self._port = parts.hostname, parts.port or 6379
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")

    async def hold(self, seconds: float) -> None:
        """Silence for `seconds`; the silence ends at most a second after this call. Raises NotSilenced."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        reader, writer = await self._connected()
        try:
            await self._greet(reader, writer)
            while seconds > 0:
                _send(writer, "CLIENT", "PAUSE", str(max(1, round(min(SLICE_S, seconds) * 1000))), "ALL")
                await _ok(reader)  # in force; the next one, sent now, is executed when it ends
                seconds -= SLICE_S
            await asyncio.sleep(max(0.0, until - loop.time()))
        finally:
            writer.transport.abort()  # drops the pending command

    async def reached(self) -> None:
        """Check that it answers and accepts the client. Raises NotSilenced."""
        reader, writer = await self._connected()
        try:
            await self._greet(reader, writer)
        finally:
            writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                return await asyncio.open_connection(self._host, self._port, limit=MAX_LINE_BYTES)
        except (OSError, TimeoutError) as error:
            raise NotSilenced(
                f"the cache at {self._host}:{self._port} cannot be reached: {error or 'no answer'}"
            ) from None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._password:
            _send(writer, "AUTH", *([self._user] if self._user else []), self._password)
            await _ok(reader)
        _send(writer, "PING")
        await _ok(reader)


def _send(writer: asyncio.StreamWriter, *words: str) -> None:
    encoded = [word.encode() for word in words]
    writer.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded))


async def _ok(reader: asyncio.StreamReader) -> None:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            line = await reader.readline()
    except (OSError, TimeoutError, ValueError) as error:
        raise NotSilenced(f"the cache does not answer: {error or 'in time'}") from None
    if not line.startswith(b"+"):
        raise NotSilenced(f"the cache says {line.decode('utf-8', 'replace').strip()[:200] or 'nothing, and leaves'}")
