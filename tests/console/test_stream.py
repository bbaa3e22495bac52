"""The stream over a network: viewers that never read, that leave, and that are here when the service goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.console.fanout import Fanout
from services.runtime.log import Log
from services.runtime.serve import Process
from tests.runtime.rig import serving, tight, until
from tests.virtual import run
from tests.wire import Wire

LARGE = b"x" * 50_000
ASK = b"GET /console/events HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def gallery(write_stall_s: float = 0.3) -> AsyncIterator[tuple[Process, Fanout]]:
    """A service whose pictures are large and come fast."""
    log = Log("test")
    fanout = Fanout(lambda: b"{}", lambda: LARGE, log, every_s=0.005)
    async with serving(
        {("GET", "/console/events"): fanout.watch}, limits=tight(write_stall_s=write_stall_s)
    ) as process:
        process.drain.on_begin(fanout.close)
        yield process, fanout
    log.close()


def test_a_viewer_that_never_reads_is_cut_off_and_the_others_go_on() -> None:
    async def main() -> None:
        async with gallery() as (process, fanout):
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(ASK)
            await reader.readuntil(LARGE)
            deaf = Wire()
            await deaf.connect(process.bound_port, receive_bytes=4096)
            deaf.send(ASK)
            await until(lambda: len(fanout.viewers) == 2, "both look")

            async def read_on() -> None:
                while len(fanout.viewers) == 2:
                    await reader.readuntil(LARGE)

            await read_on()
            assert len(fanout.viewers) == 1
            await reader.readuntil(LARGE)
            deaf.close()
            writer.close()
            await until(lambda: not fanout.viewers, "nobody looks")

    run(main)


def test_a_viewer_that_leaves_is_forgotten_at_once_and_pictures_stop_with_the_last() -> None:
    async def main() -> None:
        async with gallery() as (process, fanout):
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
                writer.write(ASK)
                await reader.readuntil(LARGE)
                writer.transport.abort()
                await until(lambda: not fanout.viewers, "nobody looks")
            await asyncio.sleep(0.02)
            made = fanout.pictures
            await asyncio.sleep(0.1)
            assert fanout.pictures == made

    run(main)


def test_whoever_looks_does_not_hold_up_a_service_that_leaves() -> None:
    async def main() -> None:
        async with gallery() as (process, fanout):
            process.drain_timeout_s = 30.0
            reader, writer = await asyncio.open_connection("127.0.0.1", process.bound_port)
            writer.write(ASK)
            await reader.readuntil(LARGE)
            reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(10):
            assert (await reading).endswith(b"0\r\n\r\n")
        assert not fanout.viewers
        writer.close()

    run(main)
