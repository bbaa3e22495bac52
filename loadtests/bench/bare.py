"""Minimal servers, as references for the machine.

    asgi     an application under uvicorn with one constant answer
    lines    a protocol under uvloop that answers every line with one line

Run: python -m loadtests.bench.bare asgi|lines PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
import uvloop

from loadtests.cluster.processes import Process, free_ports, started
from loadtests.cluster.usage import cores

_BODY = b'{"error":{"message":"every place is taken","type":"rate_limit_error","code":"yield","param":null}}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
_LINE = b'{"v":0,"verb":"confirm","job":"J_ping","seq":2,"ttl_ms":0,"status":"ok"' + b" " * 250 + b"}\n"


@asynccontextmanager
async def bare(kind: str) -> AsyncIterator[tuple[int, Process]]:
    """Runs one on the router's core. Yields its port, once it listens, and its process."""
    (port,) = free_ports(1)
    async with started("loadtests.bench.bare", kind, str(port), cores=cores()[0]) as process:
        while True:
            process.check()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield port, process


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


class Lines(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_LINE * data.count(b"\n"))


async def _lines(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Lines, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "asgi":
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), access_log=False, log_level="error", lifespan="off")
    else:
        uvloop.run(_lines(int(sys.argv[2])))
