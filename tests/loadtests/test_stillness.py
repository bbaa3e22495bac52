"""What the machine itself took: sums over any stretch, and the kernel's own count of who had to wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from loadtests.stillness import Stillness, waited_for_a_processor_s


def test_a_stretch_is_told_what_fell_into_it() -> None:
    still = Stillness()
    for at, lost_s in ((1.0, 0.0), (1.02, 0.1), (1.04, 0.0), (2.0, 0.5)):
        still.record(at, lost_s)
    assert still.late_s == pytest.approx(0.6)
    assert still.between(1.01, 1.03) == pytest.approx(0.1)
    assert still.between(1.5, 1.9) == pytest.approx(0.5)  # the beat at 2.0 tells of the time before it
    assert still.between(0.0, 3.0) == pytest.approx(0.6)
    assert still.between(2.5, 3.0) == 0.0


def test_without_a_beat_nothing_was_lost() -> None:
    assert Stillness().between(0, 10) == 0.0


def stand_still() -> None:
    """Nobody else can run meanwhile."""
    time.sleep(0.3)


def test_a_loop_that_was_away_is_noticed() -> None:
    async def main() -> float:
        still = Stillness()
        beating = asyncio.create_task(still.beat())
        await asyncio.sleep(0.05)
        begin = time.perf_counter()
        stand_still()
        while not still.between(begin, time.perf_counter()):
            await asyncio.sleep(0.01)
        beating.cancel()
        return still.between(begin, time.perf_counter())

    assert asyncio.run(main()) > 0.2


def test_who_is_gone_waits_for_nothing() -> None:
    assert waited_for_a_processor_s(2**22 - 1) == 0.0
