"""The least that a server can do with a line, under uvloop: a yardstick for the machine of the day.

Run: python -m loadtests.bench.governor.bare; it prints its port. Any bytes with an end of line are
answered by one fixed line.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

REPLY = b'{"v":0,"verb":"confirm","job":"J_ping","seq":2,"ttl_ms":0,"status":"ok"' + b" " * 250 + b"}\n"


class Bare(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(REPLY * data.count(b"\n"))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
