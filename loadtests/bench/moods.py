"""Ways to scrape the router: often, slowly, or with disconnects. Each runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

ASK = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
SLOW_READERS = 8
SMALL_BUFFER = 2048

Mood = Callable[[int], Coroutine[Any, Any, None]]


async def often(port: int) -> None:
    """The whole page every 100 ms."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(ASK)
        await reader.read()
        writer.close()
        await asyncio.sleep(0.1)


async def slowly(port: int) -> None:
    """Eight clients that read one byte a second, and reconnect when they are cut off."""
    await asyncio.gather(*(_one_slow(port) for _ in range(SLOW_READERS)))


async def _one_slow(port: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, ASK)
            while await loop.sock_recv(sock, 1):
                await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)


async def breaking_off(port: int) -> None:
    """Ten requests a second, each aborted before the answer."""
    while True:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        await asyncio.sleep(0)
        writer.transport.abort()
        await asyncio.sleep(0.1)


async def gone(port: int) -> None:
    await asyncio.Event().wait()


MOODS: dict[str, Mood] = {
    "gone": gone,
    "every 100 ms": often,
    "8 that read one byte a second": slowly,
    "10 a second that break off": breaking_off,
}


@contextlib.asynccontextmanager
async def in_mood(mood: Mood, port: int) -> AsyncIterator[None]:
    task = asyncio.create_task(mood(port))
    try:
        await asyncio.sleep(0.3)
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
