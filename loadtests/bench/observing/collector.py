"""A collector of traces that takes everything and looks at nothing, in a process of its own.

Run: python -m loadtests.bench.observing.collector PORT
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import httptools
import uvloop

from services.cli.ports import free_port

_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


@contextlib.contextmanager
def collecting() -> Iterator[str]:
    """Its address."""
    port = free_port()
    with subprocess.Popen([sys.executable, "-m", "loadtests.bench.observing.collector", str(port)]) as child:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()


async def _serve(port: int) -> None:
    import asyncio

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            self.parser = httptools.HttpRequestParser(self)

        def data_received(self, data: bytes) -> None:
            self.parser.feed_data(data)

        def on_message_complete(self) -> None:
            self.transport.write(_OK)  # type: ignore[attr-defined]

    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(int(sys.argv[1])))
