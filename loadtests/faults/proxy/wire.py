"""One direction of one connection: reads pieces, holds them as the fault requires, and writes them.

Data in transit is bounded: a reader buffers at most `2 * READ_BYTES`, the queue holds at most `LINE_PIECES` pieces of
`PIECE_BYTES`, and a writer waits at `WRITE_BYTES` unsent bytes. Beyond that the sender is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from loadtests.faults.proxy.fault import HEALTHY, Fault, Mode

PIECE_BYTES = 4096
LINE_PIECES = 128
READ_BYTES = 65_536
WRITE_BYTES = 65_536
RATE_STEP_S = 0.05  # a rate is applied in steps of this length, so that data flows smoothly


class Cut(Exception):
    """This connection has carried all that it may."""


class Conditions:
    """The current fault, and waits that react to its changes."""

    def __init__(self, fault: Fault = HEALTHY) -> None:
        self.fault = fault
        self._changed = asyncio.Event()

    def become(self, fault: Fault) -> None:
        """Set the fault and wake the waiters."""
        self.fault = fault
        self._changed.set()
        self._changed = asyncio.Event()

    async def moving(self) -> None:
        """Wait until nothing is frozen."""
        while self.fault.mode is Mode.FREEZE:
            await self._changed.wait()

    async def until(self, due: Callable[[Fault], float]) -> None:
        """Wait for a time of the loop's clock, recomputed when the fault changes, and until nothing is frozen."""
        loop = asyncio.get_running_loop()
        while True:
            await self.moving()
            remaining_s = due(self.fault) - loop.time()
            if remaining_s <= 0:
                return
            await self._wait(remaining_s)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass


class Wire:
    """From `source` to `sink`. Only the answers' direction is cut by length."""

    def __init__(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        conditions: Conditions,
        chance: Random,
        *,
        counts_to_cut: bool,
    ) -> None:
        self._source = source
        self._sink = sink
        self._conditions = conditions
        self._chance = chance
        self._counts_to_cut = counts_to_cut
        self._line: asyncio.Queue[tuple[float, float, bytes]] = asyncio.Queue(LINE_PIECES)
        self._under: Fault | None = None
        self._given_bytes = 0

    async def run(self) -> None:
        """Run until the end of the source is passed on. Raises `OSError` or `Cut`."""
        taking = asyncio.create_task(self._take())
        try:
            await self._give()
            await taking
        finally:
            taking.cancel()

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"first"
        while data:
            await self._conditions.moving()
            try:
                data = await self._source.read(PIECE_BYTES)
            except OSError:
                data = b""  # a reset counts as the end
            await self._line.put((loop.time(), self._chance.uniform(-1, 1), data))

    async def _give(self) -> None:
        while True:
            taken_at, draw, data = await self._line.get()
            await self._conditions.until(_arrival(taken_at, draw))
            if not data:
                if self._sink.can_write_eof():
                    self._sink.write_eof()
                return
            await self._send(data)

    async def _send(self, data: bytes) -> None:
        """Write all, in steps if the rate is limited, up to a cut."""
        while data:
            fault = self._conditions.fault
            step = self._step(fault, len(data))
            self._sink.write(data[:step])
            await self._sink.drain()
            self._given_bytes += step
            data = data[step:]
            if self._room(fault) == 0:
                raise Cut
            if fault.rate_bytes_s is not None:
                await self._conditions.until(_paced(asyncio.get_running_loop().time(), step))
            else:
                await self._conditions.moving()

    def _step(self, fault: Fault, length: int) -> int:
        if fault is not self._under:
            self._under, self._given_bytes = fault, 0
        room = self._room(fault)
        if room == 0:
            raise Cut
        if room is not None:
            length = min(length, room)
        if fault.rate_bytes_s is not None:
            length = min(length, max(1, int(fault.rate_bytes_s * RATE_STEP_S)))
        return length

    def _room(self, fault: Fault) -> int | None:
        """Bytes left before the cut; None if there is none."""
        if fault.cut_after_bytes is None or not self._counts_to_cut:
            return None
        return max(0, fault.cut_after_bytes - self._given_bytes)


def _arrival(taken_at: float, draw: float) -> Callable[[Fault], float]:
    """When a piece arrives. Order is kept, so a piece may wait for the one before."""
    return lambda fault: taken_at + fault.latency_s + draw * fault.jitter_s


def _paced(sent_at: float, size: int) -> Callable[[Fault], float]:
    return lambda fault: sent_at + (size / fault.rate_bytes_s if fault.rate_bytes_s is not None else 0.0)
