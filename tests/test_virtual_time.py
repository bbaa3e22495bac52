"""The clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from tests.virtual_time import run


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
