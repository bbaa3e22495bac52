"""A client that costs little, as a process of its own: `python -m loadtests.bench.governor.client LOAD PORT SECONDS`.

It looks for ends of lines and at nothing else until its time is over, then reads its last reply. Prints how many
replies that ended something came, the seconds, and its own processor seconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

from loadtests.bench.governor.wire import ping, upload

DEPTH = 128  # pings on their way
PAYLOAD = b"x" * 1024
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """Steps that are written in turn, each when the one before has had so many replies."""

    steps: Sequence[bytes]
    replies: int = 1
    a_connection_each: bool = False
    wanted: bytes = b'"status":"ok"'


LOADS = {
    "pings": Load([ping()]),
    "pipelined": Load([ping() * DEPTH], replies=DEPTH),
    "uploads": Load(upload(PAYLOAD, job="J_1"), wanted=b'"status":"done"'),
    "connections": Load(upload(PAYLOAD, job="J_1"), a_connection_each=True, wanted=b'"status":"done"'),
}


class Client(asyncio.Protocol):
    """Goes through the steps again and again, and counts the rounds."""

    def __init__(self, load: Load, done: asyncio.Future[None]) -> None:
        self._load = load
        self._done = done
        self._at = 0
        self._left = 0
        self._last = b""
        self.rounds = 0
        self.stopping = load.a_connection_each

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write()

    def data_received(self, data: bytes) -> None:
        self._left -= data.count(b"\n")
        self._last = data
        if self._left:
            return
        self._at += 1
        if self._at == len(self._load.steps):
            self._at = 0
            self.rounds += 1
            if self.stopping:
                self._end()
                return
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the governor hung up"))

    def _write(self) -> None:
        self._left = self._load.replies
        self._transport.write(self._load.steps[self._at])

    def _end(self) -> None:
        if self._load.wanted not in self._last:
            self._done.set_exception(RuntimeError(f"not what was wanted: {self._last!r}"))
        else:
            self._done.set_result(None)
        self._transport.abort()


async def drive(load: Load, port: int, seconds: float) -> int:
    """How many rounds there were in that time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    if load.a_connection_each:
        count = 0
        while loop.time() < until:
            await _connected(load, port)
            count += 1
        return count
    done = loop.create_future()
    _, client = await loop.create_connection(lambda: Client(load, done), "127.0.0.1", port)
    await asyncio.wait([done], timeout=seconds)
    rounds, client.stopping = client.rounds, True
    await done
    return rounds


async def _connected(load: Load, port: int) -> None:
    done = asyncio.get_running_loop().create_future()
    await asyncio.get_running_loop().create_connection(lambda: Client(load, done), "127.0.0.1", port)
    await done


async def main(name: str, port: int, seconds: float) -> None:
    load = LOADS[name]
    await drive(load, port, WARM_UP_S)
    began, cpu = time.perf_counter(), time.process_time()
    rounds = await drive(load, port, seconds)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"replies": rounds * load.replies, "seconds": took_s, "cpu_s": cpu_s, "warm_up_s": WARM_UP_S}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
