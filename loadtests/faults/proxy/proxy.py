"""A loopback TCP proxy that can become slow, narrow, cut, frozen, reset or closed while it runs.

It stands before a database or cache, so that network faults work on every machine: netem needs kernel support and
privileges.

    async with FaultProxy("127.0.0.1", 5432) as proxy:
        connect("127.0.0.1", proxy.port)
        await proxy.become(Fault(latency_s=0.1))  # each way
        await proxy.become(FREEZE)
        proxy.cut()

A frozen proxy accepts connections, as the kernel does for a stopped server. Beyond `connections`, new ones are reset.
The seed makes jitter reproducible.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from random import Random
from types import TracebackType

from loadtests.faults.proxy.fault import Fault, Mode
from loadtests.faults.proxy.wire import READ_BYTES, WRITE_BYTES, Conditions, Cut, Wire

HOST = "127.0.0.1"
BACKLOG = 256
CONNECT_WITHIN_S = 5.0
FINISHING_S = 2.0  # for data written before a cut
LINGER_NOTHING = struct.pack("ii", 1, 0)  # closing then sends a reset


class FaultProxy:
    """Use it only on the loop that entered it."""

    def __init__(self, host: str, port: int, *, listen: int = 0, connections: int = 256, seed: int = 1) -> None:
        self.port = listen
        self.accepted = 0
        self._to = (host, port)
        self._limit = connections
        self._chance = Random(seed)
        self._conditions = Conditions()
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def __repr__(self) -> str:
        return f"FaultProxy(port={self.port}, {self.fault}, connections={self.connections})"

    @property
    def fault(self) -> Fault:
        return self._conditions.fault

    @property
    def connections(self) -> int:
        """Open connections, including held ones."""
        return len(self._running)

    async def __aenter__(self) -> FaultProxy:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stop_listening()
        running = list(self._running)
        self.reset()
        if running:
            await asyncio.wait(running)

    async def become(self, fault: Fault) -> None:
        """Set the fault of open and new connections."""
        self._conditions.become(fault)
        if fault.mode in (Mode.RESET, Mode.REFUSE):
            self.reset()
        if fault.mode is Mode.REFUSE:
            self._stop_listening()
        elif self._server is None:
            await self._listen()

    def cut(self) -> None:
        """Close every open connection once."""
        for task in list(self._running):
            task.cancel()

    def reset(self) -> None:
        """Reset every open connection once."""
        for writer in list(self._writers):
            _abort(writer)
        self.cut()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port, limit=READ_BYTES, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.fault.mode in (Mode.RESET, Mode.REFUSE) or len(self._running) >= self._limit:
            _abort(writer)
            return
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection from its first byte to its end."""
        with contextlib.ExitStack() as leaving:
            leaving.callback(self._drop, writer)
            self._writers.add(writer)
            with contextlib.suppress(Cut, OSError, asyncio.CancelledError):
                await self._conditions.moving()
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    there, upstream = await asyncio.open_connection(*self._to, limit=READ_BYTES)
                leaving.callback(self._drop, upstream)
                self._writers.add(upstream)
                await self._exchange(reader, writer, there, upstream)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        for each in (writer, upstream):
            each.transport.set_write_buffer_limits(high=WRITE_BYTES)
        conditions, chance = self._conditions, self._chance
        asking = Wire(reader, upstream, conditions, Random(chance.random()), counts_to_cut=False)
        answering = Wire(there, writer, conditions, Random(chance.random()), counts_to_cut=True)
        both = [asyncio.create_task(wire.run()) for wire in (asking, answering)]
        try:
            await asyncio.gather(*both)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        """Close in the background; written data may still leave for a while."""
        writer.close()
        asyncio.get_running_loop().call_later(FINISHING_S, self._forget, writer)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:  # some loops have no socket for a closed connection
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOTHING)
    writer.transport.abort()
