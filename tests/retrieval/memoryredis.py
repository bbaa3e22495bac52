"""As much of a Redis client as the cache uses, in memory and on any loop, virtual ones included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class MemoryRedis:
    """Keys and when they end. Each exchange takes `takes_s`. It runs no script."""

    def __init__(self, takes_s: float = 0.001) -> None:
        self.takes_s = takes_s
        self._held: dict[str, tuple[bytes, float]] = {}

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        return _Pipeline(self)

    def register_script(self, script: str) -> Callable[..., Awaitable[int]]:
        async def refuse(**_: object) -> int:
            raise NotImplementedError("ask for all effort")

        return refuse

    async def set(self, key: str, data: bytes, *, px: int) -> bool:
        await asyncio.sleep(self.takes_s)
        self._held[key] = (data, _now() + px / 1000)
        return True

    async def ping(self) -> None:
        await asyncio.sleep(self.takes_s)

    async def aclose(self) -> None:
        pass

    def read(self, key: str) -> tuple[bytes | None, int]:
        """The value and the milliseconds that are left of it."""
        data, ends = self._held.get(key, (None, 0.0))
        left_ms = round((ends - _now()) * 1000)
        return (None, -2) if data is None or left_ms <= 0 else (data, left_ms)


class _Pipeline:
    """One GET and one PTTL."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._key = ""

    async def __aenter__(self) -> _Pipeline:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def get(self, key: str) -> None:
        self._key = key

    def pttl(self, key: str) -> None:
        assert key == self._key

    async def execute(self) -> tuple[bytes | None, int]:
        await asyncio.sleep(self._redis.takes_s)
        return self._redis.read(self._key)


def _now() -> float:
    return asyncio.get_running_loop().time()
