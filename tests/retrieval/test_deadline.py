"""Walking away: exactly on time, whatever the work does about it."""

from __future__ import annotations

import asyncio
import gc
import socket
import time

import pytest

from services.retrieval.deadline import DeadlineExceeded, wait_until, with_deadline
from tests.virtual import run


async def after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def cleans_up_for(seconds: float) -> None:
    """A driver that takes its time over being cancelled."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(seconds)


def test_what_is_in_time_is_passed_on_and_so_is_its_error() -> None:
    async def fails() -> None:
        raise ValueError("theirs")

    async def main() -> None:
        assert await with_deadline(1.0, after(0.5)) == "done"
        with pytest.raises(ValueError, match="theirs"):
            await with_deadline(1.0, fails())

    run(main())


def test_what_cleans_up_for_six_seconds_does_not_delay_the_caller() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(DeadlineExceeded):
            await with_deadline(1.0, cleans_up_for(6.0))
        assert loop.time() == 1.0
        await asyncio.sleep(10)  # let it end before the loop does

    run(main())


def test_what_lay_in_the_socket_while_the_loop_was_away_is_not_late() -> None:
    async def understood(reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(7)
        await asyncio.sleep(0)
        return data

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)

        def be_away() -> None:
            theirs.send(b"in time")
            time.sleep(0.05)

        loop.call_soon(be_away)
        assert await with_deadline(loop.time() + 0.01, understood(reader)) == b"in time"
        writer.close()
        theirs.close()

    asyncio.run(main())


def test_where_there_is_nothing_after_all_the_loop_says_that_it_was_away() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(time.sleep, 0.05)
        with pytest.raises(DeadlineExceeded) as away:
            await with_deadline(loop.time() + 0.01, after(60.0))
        assert away.value.loop_lagged

    asyncio.run(main())


def test_a_loop_that_looks_in_time_was_not_away() -> None:
    async def main() -> None:
        for deadline in (0.0, 1.0):
            with pytest.raises(DeadlineExceeded) as late:
                await with_deadline(deadline, after(60.0))
            assert not late.value.loop_lagged
        assert asyncio.get_running_loop().time() == 1.0

    run(main())


def test_a_deadline_that_has_passed_is_late_at_once() -> None:
    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await with_deadline(-1.0, after(0.5))
        assert asyncio.get_running_loop().time() == 0.0

    run(main())


def test_work_goes_when_its_caller_goes() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("work")

    async def main() -> None:
        caller = asyncio.create_task(with_deadline(100.0, work()))
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.sleep(0.1)
        assert ended == ["work"]

    run(main())


def test_a_task_that_is_left_runs_on() -> None:
    async def main() -> None:
        task = asyncio.create_task(after(2))
        with pytest.raises(DeadlineExceeded):
            await wait_until(1.0, task)
        assert await task == "done"

    run(main())


def test_the_error_of_what_was_left_behind_troubles_nobody() -> None:
    complaints: list[object] = []

    async def fails_later() -> None:
        await asyncio.sleep(2)
        raise ValueError("nobody listens")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with pytest.raises(DeadlineExceeded):
            await wait_until(1.0, asyncio.create_task(fails_later()))
        await asyncio.sleep(5)

    run(main())
    assert complaints == []


def test_an_error_that_comes_just_as_the_caller_leaves_is_not_reported_as_forgotten() -> None:
    reported: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        gate: asyncio.Future[None] = loop.create_future()
        task = asyncio.ensure_future(_through(gate))
        caller = loop.create_task(wait_until(5.0, task))
        await asyncio.sleep(0.1)
        task.add_done_callback(lambda _: caller.cancel())  # after the caller has been told, before it runs
        gate.set_exception(ValueError("theirs"))
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert task.done()

    run(main())
    gc.collect()
    assert reported == []


async def _through(gate: asyncio.Future[None]) -> None:
    await gate
