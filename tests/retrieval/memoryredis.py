"""As much of a Redis client as the cache uses, in memory and on any loop, virtual ones included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from services.retrieval.cache import WRITE_TIMEOUT_S


class MemoryRedis:
    """Keys and when they end. Each exchange takes `takes_s`, or as long as a socket waits. It runs no script."""

    def __init__(self, takes_s: float = 0.001) -> None:
        self.takes_s = takes_s
        self.reads = self.writes = self.pings = 0
        self.connection_pool = SimpleNamespace(max_connections=16)
        self._held: dict[str, tuple[bytes, float]] = {}

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        return _Pipeline(self)

    def register_script(self, script: str) -> Callable[..., Awaitable[int]]:
        async def refuse(**_: object) -> int:
            raise NotImplementedError("ask for all effort")

        return refuse

    async def set(self, key: str, data: bytes, *, px: int) -> bool:
        self.writes += 1
        await self.exchange()
        self._held[key] = (data, _now() + px / 1000)
        return True

    async def ping(self) -> None:
        self.pings += 1
        await self.exchange()

    async def aclose(self) -> None:
        pass

    async def exchange(self) -> None:
        await asyncio.sleep(min(self.takes_s, WRITE_TIMEOUT_S))
        if self.takes_s > WRITE_TIMEOUT_S:
            raise RedisTimeoutError

    def held(self, key: str) -> tuple[bytes | None, int]:
        """The value and the milliseconds that are left of it."""
        data, ends = self._held.get(key, (None, 0.0))
        left_ms = round((ends - _now()) * 1000)
        return (None, -2) if data is None or left_ms <= 0 else (data, left_ms)


class _Pipeline:
    """A GET and a PTTL for each of its keys."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._keys: list[str] = []

    async def __aenter__(self) -> _Pipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> None:
        self._keys.append(key)

    def pttl(self, key: str) -> None:
        assert self._keys[-1] == key

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        self._redis.reads += 1
        await self._redis.exchange()
        return [answer for key in self._keys for answer in self._redis.held(key)]


def _now() -> float:
    return asyncio.get_running_loop().time()
