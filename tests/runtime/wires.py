"""A server for the client pool without sockets: the test holds its end of every connection, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.runtime.keepalive import Pool
from tests.runtime.rig import Tape


class Wire(Tape):
    """One connection, seen from the server: `written` is what the client sent, `feed` is what it gets."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.lost = False

    def feed(self, *pieces: bytes) -> None:
        """Each piece as one read of the socket; nothing once the client has closed."""
        for piece in pieces:
            if not self.closed:
                self.protocol.data_received(piece)

    def end(self, error: Exception | None = None) -> None:
        """The server closes, or resets with an error. As in the loops: closing at once, `connection_lost` soon."""
        if error is None:
            self.protocol.eof_received()
        self._close(error)

    def abort(self) -> None:
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        self.closed = True
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)

    @property
    def requests(self) -> int:
        """How many requests have been written to it."""
        return self.written.count(b" HTTP/1.1\r\n")


@asynccontextmanager
async def wired(
    refuse: Callable[[], OSError | None] = lambda: None, **options: Any
) -> AsyncIterator[tuple[Pool, list[Wire]]]:
    """A pool whose connections are wires, in the order in which they were made. `refuse` may fail a connection."""
    wires: list[Wire] = []
    loop: Any = asyncio.get_running_loop()

    async def create_connection(factory: Callable[[], Any], *where: Any, **how: Any) -> tuple[Wire, Any]:
        await asyncio.sleep(0)
        if (error := refuse()) is not None:
            raise error
        protocol = factory()
        wires.append(Wire(protocol))
        protocol.connection_made(wires[-1])
        return wires[-1], protocol

    loop.create_connection = create_connection
    pool = Pool("http://worker.test:8000/v1", **{"max_connections": 8, **options})
    try:
        yield pool, wires
    finally:
        pool.close()


async def turns(count: int = 5) -> None:
    """Let what is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
