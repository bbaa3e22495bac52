"""A raw connection, as a socket of the kernel is: what comes stays where it is until somebody asks for it.

For clients that do not read, and for those who leave in one way or another. On the network of any event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST


class Wire(asyncio.Protocol):
    """One connection. Nothing is read before `recv`, and no more than one piece then."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._error: Exception | None = None
        self._ended = False

    async def connect(self, port: int, *, receive_bytes: int | None = None) -> None:
        """To a port of this machine; `receive_bytes` is how much the kernel may hold of what nobody has read."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", port)
        if receive_bytes is not None:
            self._option(socket.SO_RCVBUF, receive_bytes)

    def send(self, data: bytes) -> None:
        self._transport.write(data)

    async def recv(self) -> bytes:
        """What has come, b"" at the end. Raises ConnectionError."""
        assert self._waiting is None, "one reads at a time"
        if self._error is not None:
            raise self._error
        if self._ended:
            return b""
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.resume_reading()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def shut(self) -> None:
        """Say that nothing more is sent (FIN), and go on reading."""
        self._transport.write_eof()

    def reset(self) -> None:
        """Close with a reset."""
        self._option(socket.SO_LINGER, RESET)
        self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _option(self, option: int, value: int | bytes) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)

    # What the transport tells

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()
        self._tell(data)

    def eof_received(self) -> bool:
        self._ended = True
        self._tell(b"")
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._error = True, exc
        self._tell(b"")

    def _tell(self, data: bytes) -> None:
        if self._waiting is not None and not self._waiting.done():
            if self._error is None:
                self._waiting.set_result(data)
            else:
                self._waiting.set_exception(self._error)
