"""What is held when all is over: waited for, and told where it stays."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.cluster import settling
from loadtests.cluster.settling import left_over


def left(*held: float, within_s: float) -> tuple[float, int]:
    """What is left, and after how many looks; the last is what stays."""
    looks = 0

    async def look() -> float:
        nonlocal looks
        looks += 1
        return held[min(looks, len(held)) - 1]

    return asyncio.run(left_over(look, within_s)), looks


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "LOOK_EVERY_S", 0.001)


def test_nothing_held_is_seen_at_the_first_look() -> None:
    assert left(0.0, 5.0, within_s=1) == (0.0, 1)


def test_what_goes_is_waited_for() -> None:
    assert left(3.0, 1.0, 0.0, within_s=1) == (0.0, 3)


def test_what_stays_is_told_when_the_time_is_up() -> None:
    assert left(3.0, 2.0, within_s=0.005) == (2.0, 5)


def test_there_is_one_look_at_least() -> None:
    assert left(2.0, within_s=0) == (2.0, 1)
