"""Who comes while the service is busy for a moment waits, and is not turned away."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from services.runtime.serve import running
from tests.runtime.rig import build

CROWD = 300  # asyncio's own backlog is 100
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")


def kernel_allows() -> int:
    return int(SOMAXCONN.read_text()) if SOMAXCONN.exists() else CROWD


@pytest.mark.sockets
@pytest.mark.skipif(kernel_allows() < CROWD, reason="net.core.somaxconn is smaller than the crowd")
def test_a_crowd_that_connects_while_the_loop_is_busy_is_let_in() -> None:
    async def main() -> list[socket.socket]:
        process = build({})
        connected: list[socket.socket] = []

        def crowd(port: int) -> None:
            for _ in range(CROWD):
                try:
                    connected.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                except TimeoutError:
                    return

        async with running(process):
            thread = threading.Thread(target=crowd, args=(process.bound_port,))
            thread.start()
            thread.join()  # the loop stands still meanwhile
        process.log.close()
        return connected

    connected = asyncio.run(main())
    for one in connected:
        one.close()
    assert len(connected) == CROWD
