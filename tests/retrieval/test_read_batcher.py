"""Readers share exchanges when there are more of them than exchanges, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from services.retrieval.read_batcher import MAX_KEYS, ReadBatcher
from tests.virtual import run

TAKES_S = 0.01


class Pipeline:
    """Answers each key with its own name and a life of a second, after a while."""

    def __init__(self, redis: FakeRedis) -> None:
        self._redis = redis
        self._keys: list[str] = []

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def get(self, key: str) -> None:
        self._keys.append(key)

    def pttl(self, key: str) -> None:
        assert self._keys[-1] == key

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        self._redis.exchanges.append(self._keys)
        self._redis.running += 1
        self._redis.most_running = max(self._redis.most_running, self._redis.running)
        try:
            await asyncio.sleep(3600 if self._redis.hangs else TAKES_S)
        finally:
            self._redis.running -= 1
        if self._redis.fault is not None:
            raise self._redis.fault
        return [answer for key in self._keys for answer in (self._redis.odd.get(key, key.encode()), 1000)]


class FakeRedis:
    """As much of a client as reading takes."""

    def __init__(self) -> None:
        self.exchanges: list[list[str]] = []
        self.running = self.most_running = 0
        self.hangs = False
        self.fault: Exception | None = None
        self.odd: dict[str, object] = {}

    def pipeline(self, *, transaction: bool) -> Pipeline:
        assert not transaction
        return Pipeline(self)


def play(scenario: Callable[[ReadBatcher, FakeRedis], Awaitable[None]], *, exchanges: int = 2) -> FakeRedis:
    redis = FakeRedis()

    async def main() -> None:
        reads = ReadBatcher(redis, exchanges=exchanges)  # type: ignore[arg-type]
        await scenario(reads, redis)
        await reads.stop()

    run(main())
    return redis


async def outcome(work: Coroutine[Any, Any, Any]) -> object:
    try:
        return await work
    except Exception as error:
        return error


async def one_after_the_other(reads: ReadBatcher, *keys: str) -> list[asyncio.Task[Any]]:
    """Each asks in a turn of its own, and nobody waits for an answer."""
    tasks = []
    for key in keys:
        tasks.append(asyncio.create_task(reads.read(key)))
        await asyncio.sleep(TAKES_S / 100)
    return tasks


def test_as_long_as_an_exchange_is_free_a_reader_has_it_for_itself() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        tasks = await one_after_the_other(reads, "a", "b")
        assert await asyncio.gather(*tasks) == [(b"a", 1000), (b"b", 1000)]
        assert redis.exchanges == [["a"], ["b"]]

    play(scenario)


def test_those_who_ask_at_once_or_while_all_exchanges_are_under_way_share_and_each_gets_its_own() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        early = await one_after_the_other(reads, "a", "b")
        keys = [f"key {number}" for number in range(MAX_KEYS + 5)]
        assert await asyncio.gather(*map(reads.read, keys)) == [(key.encode(), 1000) for key in keys]
        assert await asyncio.gather(*early) == [(b"a", 1000), (b"b", 1000)]
        assert list(map(len, redis.exchanges)) == [1, 1, MAX_KEYS, 5]

    assert play(scenario).most_running == 2


def test_an_exchange_that_has_just_ended_is_free_for_the_next_reader() -> None:
    """Whoever asks in the very moment in which the last one is answered must not wait for nobody."""

    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        async def again_and_again(name: str) -> None:
            for number in range(50):
                assert await reads.read(f"{name} {number}") == (f"{name} {number}".encode(), 1000)

        async with asyncio.timeout(60):
            await asyncio.gather(*(again_and_again(name) for name in "abcde"))

    play(scenario, exchanges=1)


def test_who_has_left_is_not_asked_for_and_holds_nobody_up() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        first, leaver, stayer = await one_after_the_other(reads, "first", "leaver", "stayer")
        leaver.cancel()
        assert await stayer == (b"stayer", 1000)
        assert await first == (b"first", 1000)
        assert redis.exchanges == [["first"], ["stayer"]]

    play(scenario, exchanges=1)


def test_a_key_that_is_refused_is_an_error_for_its_reader_alone() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        redis.odd["a list"] = ResponseError("WRONGTYPE")
        outcomes = await asyncio.gather(*(outcome(reads.read(key)) for key in ("first", "a list", "other")))
        assert outcomes[0] == (b"first", 1000)
        assert isinstance(outcomes[1], ResponseError)
        assert outcomes[2] == (b"other", 1000)

    play(scenario, exchanges=1)


def test_an_exchange_that_fails_fails_for_all_who_shared_it_and_the_next_fares_better() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        redis.fault = RedisConnectionError("reset")
        outcomes = await asyncio.gather(*(outcome(reads.read(key)) for key in ("first", "second", "third")))
        assert [type(each) for each in outcomes] == [RedisConnectionError] * 3
        assert outcomes[1] is not outcomes[2]
        redis.fault = None
        assert await reads.read("fourth") == (b"fourth", 1000)

    play(scenario, exchanges=1)


def test_it_stops_while_redis_hangs() -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        redis.hangs = True
        waiting = await one_after_the_other(reads, "a", "b", "c", "d")
        assert redis.running == 2
        for task in waiting:
            task.cancel()
        await reads.stop()
        assert redis.running == 0

    play(scenario)


@pytest.mark.parametrize("exchanges", [1, 3])
def test_never_more_exchanges_than_allowed(exchanges: int) -> None:
    async def scenario(reads: ReadBatcher, redis: FakeRedis) -> None:
        await asyncio.gather(*await one_after_the_other(reads, *map(str, range(500))))

    assert play(scenario, exchanges=exchanges).most_running == exchanges
