"""Batched reads of the cache (GET and PTTL, pipelined): concurrent readers share a round trip to Redis.

With a round trip for each reader, a busy service has more readers than connections. Readers would queue for
connections, time out, and report Redis as slow. A batch forms only while all round trips are busy; a free one serves a
reader at once and alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.runtime.ordered import OrderedSet

MAX_KEYS = 64

Reply = tuple[Any, Any]  # the value under the key, and its remaining time to live in ms
Batch = list[tuple[str, asyncio.Future[Reply]]]


class ReadBatcher:
    """At most `exchanges` round trips at a time, each of at most `MAX_KEYS` keys."""

    def __init__(self, client: Redis, *, exchanges: int) -> None:
        self._client = client
        self._free = exchanges
        self._waiting: deque[tuple[str, asyncio.Future[Reply]]] = deque()
        self._running: OrderedSet[asyncio.Task[None]] = OrderedSet()

    async def read(self, key: str) -> Reply:
        """The value (bytes, or None) and its remaining time to live in ms. Raises RedisError or OSError.

        It has no timeout of its own; a cancelled reader is left out of the next batch and delays no other.
        """
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, waiter))
        if self._free > 0:
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._exchange(), name="redis-read")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await waiter

    async def stop(self) -> None:
        """Cancel the round trips that are under way, and wait for their tasks to end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _exchange(self) -> None:
        """Round trip after round trip while readers wait; the slot is free again as soon as none does."""
        try:
            while batch := self._next():
                await self._serve(batch)
        finally:
            self._free += 1

    async def _serve(self, batch: Batch) -> None:
        try:
            replies = await self._exchange_keys([key for key, _ in batch])
        except Exception as error:  # it fails this batch only: the next round trip may succeed
            for _, waiter in batch:
                _resolve(waiter, _copy_of(error), None)
            return
        for (_, waiter), value, left_ms in zip(batch, replies[::2], replies[1::2], strict=True):
            _resolve(waiter, value, left_ms)

    def _next(self) -> Batch:
        """The readers that still wait, in order of arrival."""
        batch: Batch = []
        while self._waiting and len(batch) < MAX_KEYS:
            key, waiter = self._waiting.popleft()
            if not waiter.done():
                batch.append((key, waiter))
        return batch

    async def _exchange_keys(self, keys: list[str]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.get(key)
                pipeline.pttl(key)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies


def _resolve(waiter: asyncio.Future[Reply], value: Any, left_ms: Any) -> None:
    """Give a reader its reply; an error of one key (a wrong type) fails that reader only."""
    if waiter.done():
        return
    if isinstance(value, Exception):
        waiter.set_exception(value)
    else:
        waiter.set_result((value, left_ms))


def _copy_of(error: Exception) -> Exception:
    """A copy for each reader: one exception raised in several places would gather all their tracebacks."""
    return type(error)(*error.args) if isinstance(error, RedisError) else error
