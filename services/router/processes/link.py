"""The words between a parent and a router process, a byte each, over a socket pair.

from the process   READY      it accepts connections
                   LEAVING    it accepts no new ones
                   LAST       it has answered its last request: read its metrics, and answer with the same word
from the parent    COVER      accept from the other processes' sockets too
                   OWN        accept from its own only
                   HAND_OVER  leave without losing a request: others accept in its place
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

READY, LEAVING, LAST = b"r", b"l", b"e"
COVER, OWN, HAND_OVER = b"c", b"o", b"h"
MAX_READ = 64


class Link:
    """The process's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.setblocking(False)

    def listen(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        """Call `received` with each word from now on, and `lost` once when the parent is gone."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                words = self._sock.recv(MAX_READ)
            except BlockingIOError:
                return
            except OSError:
                words = b""
            if not words:
                loop.remove_reader(self._sock)
                lost()
            for word in words:
                received(bytes([word]))

        loop.add_reader(self._sock, read)

    def say(self, word: bytes) -> None:
        """A parent that is gone hears nothing; so much is never unread that a byte finds no room."""
        with contextlib.suppress(OSError):
            self._sock.send(word)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
