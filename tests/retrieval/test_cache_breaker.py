"""When the cache leaves Redis alone and when it comes back, in virtual time: what a read needs decides that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from redis.asyncio import Redis

from services.core.breaker import Breaker
from services.retrieval.cache import SETTLE_EVERY_S, WRITE_TIMEOUT_S, Cache
from tests.retrieval.cacherig import KEY, PARAMS, RESULTS
from tests.retrieval.fakes import Lines, metrics
from tests.retrieval.memoryredis import MemoryRedis
from tests.virtual import run

TIMEOUT_S = 0.02
HOUR_S = 3600.0
FROZEN_S = 10 * HOUR_S


class Rig:
    """The cache over it, watched."""

    def __init__(self) -> None:
        self.redis = MemoryRedis()
        self.lines = Lines()
        self.cache = Cache(
            cast(Redis, self.redis), Breaker(max_open_s=2.0), timeout_s=TIMEOUT_S, stale_s=100.0, metrics=metrics(),
            log=self.lines.log,
        )  # fmt: skip

    async def read(self, *, budget_s: float = 1.0) -> float:
        """The seconds that it cost."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.cache.get(KEY, params=PARAMS, version=7, ttl_s=60.0, budget_s=budget_s)
        return loop.time() - began

    def write(self) -> None:
        self.cache.put(KEY, RESULTS, params=PARAMS, version=7, ttl_s=60.0)

    async def traffic(self, seconds: float, every_s: float = 0.5) -> None:
        """Reads and writes, for so long."""
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            await self.read()
            self.write()
            await asyncio.sleep(every_s)


def play(scenario: Callable[[Rig], Awaitable[None]], *, watched: bool = True) -> list[str]:
    """What was logged."""
    rig = Rig()

    async def main() -> None:
        if watched:
            await rig.cache.start()
        await scenario(rig)
        await rig.cache.stop()

    run(main())
    return [word for line in rig.lines.read().splitlines() for word in ("down", "up") if f"redis is {word}" in line]


@pytest.mark.parametrize("takes_s", [TIMEOUT_S * 1.5, 0.2, WRITE_TIMEOUT_S * 1.5, FROZEN_S])
def test_a_redis_too_slow_for_a_read_is_left_alone_as_long_as_it_is_and_said_to_be_down_once(takes_s: float) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.traffic(5)
        rig.redis.takes_s = takes_s
        await rig.traffic(5)
        assert not rig.cache.up
        reads = rig.redis.reads
        await rig.traffic(HOUR_S)
        assert not rig.cache.up
        assert rig.redis.reads == reads, "no read has paid for it since"
        rig.redis.takes_s = 0.001
        await asyncio.sleep(5)
        assert rig.cache.up

    assert play(scenario) == ["down", "up"]


def test_a_redis_as_slow_as_a_read_may_be_is_used() -> None:
    async def scenario(rig: Rig) -> None:
        rig.redis.takes_s = TIMEOUT_S * 0.9
        await rig.traffic(60)
        assert rig.cache.up

    assert play(scenario) == []


def test_a_write_that_takes_its_time_is_no_sign_that_reads_are_served() -> None:
    """Between any two reads that fail there is a write that does not."""

    async def scenario(rig: Rig) -> None:
        rig.redis.takes_s = TIMEOUT_S * 1.5
        for _ in range(3):
            assert await rig.read() == pytest.approx(TIMEOUT_S)
            rig.write()
            await asyncio.sleep(0.3)
        assert rig.redis.writes == 2, "the third was not even tried"
        assert not rig.cache.up

    assert play(scenario, watched=False) == ["down"]


def test_whoever_has_little_time_does_not_take_the_cache_from_those_who_have_more() -> None:
    async def scenario(rig: Rig) -> None:
        rig.redis.takes_s = TIMEOUT_S / 2
        for _ in range(50):
            assert await rig.read(budget_s=TIMEOUT_S) == pytest.approx(TIMEOUT_S / 4)
        assert rig.cache.up
        assert await rig.read() == pytest.approx(TIMEOUT_S / 2)

    assert play(scenario) == []


def test_and_yet_a_redis_that_hangs_is_found_out_by_them_within_a_second_or_so() -> None:
    async def scenario(rig: Rig) -> None:
        await asyncio.sleep(1.5)
        rig.redis.takes_s = FROZEN_S
        began = asyncio.get_running_loop().time()
        while rig.cache.up:
            await rig.read(budget_s=TIMEOUT_S)
        assert asyncio.get_running_loop().time() - began < 3 * (WRITE_TIMEOUT_S + SETTLE_EVERY_S) + 0.1

    assert play(scenario) == ["down"]


def test_doubts_do_not_make_the_watcher_ask_without_end() -> None:
    async def scenario(rig: Rig) -> None:
        rig.redis.takes_s = TIMEOUT_S / 2
        while asyncio.get_running_loop().time() < 10:
            await rig.read(budget_s=0.001)
            await asyncio.sleep(0.01)
        assert rig.redis.pings <= 2 * 10 / SETTLE_EVERY_S

    assert play(scenario) == []
