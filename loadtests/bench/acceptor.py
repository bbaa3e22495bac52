"""One of several small servers on one port, for the benchmark `sockets`.

    python -m loadtests.bench.acceptor NAME FD          accepts from an inherited socket
    python -m loadtests.bench.acceptor NAME port PORT   from a socket of its own, with SO_REUSEPORT

It answers each byte with its name, a byte. It prints a line once it accepts; after SIGTERM it stops to accept, and ends
when its connections have ended.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import uvloop

from services.runtime.serve import last_turns
from services.runtime.server import BACKLOG


class Named(asyncio.Protocol):
    open = 0
    name = b"?"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self.transport = transport
        Named.open += 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.name * len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        Named.open -= 1


def listening(words: list[str]) -> socket.socket:
    if words[0] != "port":
        return socket.socket(fileno=int(words[0]))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", int(words[1])))
    return sock


async def main(name: str, *words: str) -> None:
    Named.name = name.encode()
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    server = await loop.create_server(Named, sock=listening(list(words)), backlog=BACKLOG)
    print("accepts", flush=True)
    await over.wait()
    await last_turns()
    server.close()
    while Named.open:
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
