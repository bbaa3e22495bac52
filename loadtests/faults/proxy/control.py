"""The control port: each line sets a fault and gets one line back.

    $ nc 127.0.0.1 7001
    latency 100 jitter 20
    ok mode=pass latency_s=0.1 jitter_s=0.02 connections=3 accepted=7
    cut
    ok ...

`fault.py` defines the lines. `cut` and `state` do not change the fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from loadtests.faults.proxy.fault import read
from loadtests.faults.proxy.proxy import HOST, FaultProxy

LINE_BYTES = 256
CONNECTIONS = 8
IDLE_S = 300.0


@asynccontextmanager
async def controlled(proxy: FaultProxy, port: int = 0) -> AsyncIterator[int]:
    """Listen on this port, 0 for any; yields the port."""
    talking: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(talking) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(_talk(proxy, reader, writer))
        talking.add(task)
        task.add_done_callback(talking.discard)

    server = await asyncio.start_server(accept, HOST, port, limit=LINE_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        leaving = list(talking)
        for task in leaving:
            task.cancel()
        if leaving:
            await asyncio.wait(leaving)


async def _talk(proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            async with asyncio.timeout(IDLE_S):
                line = await reader.readline()
            if not line:
                return
            writer.write((await obey(proxy, line.decode("utf-8", "replace")) + "\n").encode())
            await writer.drain()
    except (OSError, ValueError):  # disconnected, idle, or too long a line
        return
    finally:
        writer.close()


async def obey(proxy: FaultProxy, line: str) -> str:
    """Execute a line and return the reply."""
    try:
        if line.strip() == "cut":
            proxy.cut()
        elif line.strip() != "state":
            await proxy.become(read(line))
    except (ValueError, OverflowError, OSError) as error:
        return f"error {error}"
    holds = " ".join(f"{name}={value}" for name, value in asdict(proxy.fault).items() if value is not None)
    return f"ok {holds} connections={proxy.connections} accepted={proxy.accepted}"
