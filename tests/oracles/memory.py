"""Sockets in memory, on a clock that jumps: enough of them that a service answers, and answers the same each time.

A listener is known by its port. What one side writes the other receives in the next turn of the loop, whole and in
order. Nothing is lost or late here, and nothing is cut: a transcript is about what is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.virtual_time import VirtualTimeLoop

HIGH_WATER = 65_536
CLIENT = ("127.0.0.1", 50_000)


@dataclass(frozen=True, slots=True)
class Address:
    """In place of a listening socket."""

    host: str
    port: int

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None: ...


class MemoryLoop(VirtualTimeLoop):
    """An event loop whose connections never leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.listening: dict[int, Callable[[], Any]] = {}

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:  # type: ignore[override]
        self.listening[sock.getsockname()[1]] = protocol_factory
        return _Server(self, sock.getsockname()[1])

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        if port not in self.listening:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        near, far = Transport(self, protocol_factory(), (host, port)), Transport(self, self.listening[port](), CLIENT)
        near.peer, far.peer = far, near
        near.protocol.connection_made(near)
        self.call_soon(far.protocol.connection_made, far)
        return near, near.protocol


@dataclass
class _Server:
    loop: MemoryLoop
    port: int

    def close(self) -> None:
        self.loop.listening.pop(self.port, None)


class Transport(asyncio.Transport):
    """One end. What it writes waits here while the other end has paused its reading."""

    peer: Transport

    def __init__(self, loop: MemoryLoop, protocol: Any, peername: tuple[str, int]) -> None:
        super().__init__({"peername": peername})
        self._loop = loop
        self.protocol = protocol
        self._unread = bytearray()
        self._high = HIGH_WATER
        self._reading = True
        self._closing = self._ended = self._lost = self._paused = False

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def write(self, data: Any) -> None:
        if self._closing or self._ended:
            return
        self._unread += data
        self._loop.call_soon(self._move)
        if len(self._unread) > self._high and not self._paused and not self.peer._reading:
            self._paused = True
            self._loop.call_soon(self.protocol.pause_writing)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ended = True
        self._loop.call_soon(self._move)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self.peer._move)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._move)

    def abort(self) -> None:
        self._closing = True
        self._unread.clear()
        self._loop.call_soon(self._lose, None)
        self._loop.call_soon(self.peer._lose, ConnectionResetError("the other end is gone"))

    def _move(self) -> None:
        """Hand over what was written; then the end, if it has come."""
        peer = self.peer
        if self._lost or not peer._reading:
            return
        if self._unread and not peer._lost and not peer._closing:
            data = bytes(self._unread)
            self._unread.clear()
            _deliver(peer.protocol, data)
        self._unread.clear()
        if self._paused:
            self._paused = False
            self.protocol.resume_writing()
        if self._closing or self._ended:
            peer._hear_end()
        if self._closing:
            self._lose(None)

    def _hear_end(self) -> None:
        if not self._lost and not self._closing and not self.protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self.protocol.connection_lost(error)


def _deliver(protocol: Any, data: bytes) -> None:
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    while data:
        buffer = protocol.get_buffer(-1)
        size = min(len(data), len(buffer))
        buffer[:size] = data[:size]  # type: ignore[index]  # a Buffer here is a bytearray
        protocol.buffer_updated(size)
        data = data[size:]
