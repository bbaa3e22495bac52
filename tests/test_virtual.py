"""The virtual clock of tests: it begins at 0, jumps, can stand still, and carries connections."""

from __future__ import annotations

import asyncio

import pytest

from tests.virtual import bind, run, stand_still


def test_an_hour_passes_in_no_time_and_timers_fire_in_order():
    fired: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("hour", 3600), sleeper("second", 1), sleeper("day", 86_400))

    run(main())
    assert fired == [("second", 1), ("hour", 3600), ("day", 86_400)]


def test_a_timeout_is_met_exactly():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 2.5


def test_waiting_for_what_can_never_come_is_reported():
    async def main() -> None:
        await asyncio.Event().wait()

    waiting = main()
    with pytest.raises(RuntimeError, match="wait for ever"):
        run(waiting)


def test_what_was_due_while_the_process_stood_still_is_late_and_in_order():
    async def main() -> list[tuple[str, float]]:
        loop, rang = asyncio.get_running_loop(), list[tuple[str, float]]()
        for name, seconds in (("second", 2.0), ("first", 1.0), ("third", 9.0)):
            loop.call_later(seconds, lambda name=name: rang.append((name, loop.time())))
        stand_still(5)
        await asyncio.sleep(5)
        return rang

    assert run(main()) == [("first", 5), ("second", 5), ("third", 9)]


def test_a_listening_socket_is_in_memory_on_the_virtual_clock():
    async def main() -> bytes:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        listening = bind("127.0.0.1", 0)
        await asyncio.start_server(greet, sock=listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            return await reader.read()
        finally:
            writer.close()

    assert run(main()) == b"hello"


@pytest.mark.sockets
def test_and_of_the_kernel_on_any_other_clock():
    async def main() -> None:
        with bind("127.0.0.1", 0) as listening:
            assert listening.fileno() > 0

    asyncio.run(main())


def test_a_clock_of_the_wall_does_not_stand_still():
    async def main() -> None:
        with pytest.raises(AssertionError, match="no virtual clock"):
            stand_still(1)

    asyncio.run(main())
