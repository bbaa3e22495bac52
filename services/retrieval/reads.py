"""Reading many keys in few exchanges: those who ask at once share one, and those who ask while all are under way.

An exchange is one message to Redis and one answer, on one connection. With one for each reader, a service at its limit
has more readers than connections; they wait for each other, are late, and take Redis for slow, which was waiting for
them. A batch forms from waiting, never by waiting: as long as an exchange is free, a reader has it for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.runtime.ordered import OrderedSet

MOST_KEYS = 64

Read = tuple[Any, Any]  # what is kept under the key, and the milliseconds that are left of its life
Batch = list[tuple[str, asyncio.Future[Read]]]


class Reads:
    """At most `exchanges` at a time, each of at most `MOST_KEYS` keys."""

    def __init__(self, client: Redis, *, exchanges: int) -> None:
        self._client = client
        self._free = exchanges
        self._waiting: deque[tuple[str, asyncio.Future[Read]]] = deque()
        self._running: OrderedSet[asyncio.Task[None]] = OrderedSet()

    async def read(self, key: str) -> Read:
        """The value and what is left of its life. Raises what Redis says of this key, or what became of the exchange.

        It bounds no time: whoever cancels it is not waited for and holds nobody up.
        """
        place: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, place))
        if self._free > 0:
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._exchange(), name="redis-read")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await place

    async def stop(self) -> None:
        """Leave what is under way."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _exchange(self) -> None:
        """One exchange after the other, while anyone waits. Free again in the moment in which nobody does."""
        try:
            while batch := self._next():
                await self._serve(batch)
        finally:
            self._free += 1

    async def _serve(self, batch: Batch) -> None:
        try:
            answers = await self._ask([key for key, _ in batch])
        except Exception as error:  # theirs, whatever it was: the next ones may fare better
            for _, place in batch:
                _tell(place, _once_more(error), None)
            return
        for (_, place), value, left_ms in zip(batch, answers[::2], answers[1::2], strict=True):
            _tell(place, value, left_ms)

    def _next(self) -> Batch:
        """Those who still wait, the first first."""
        batch: Batch = []
        while self._waiting and len(batch) < MOST_KEYS:
            key, place = self._waiting.popleft()
            if not place.done():
                batch.append((key, place))
        return batch

    async def _ask(self, keys: list[str]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.get(key)
                pipeline.pttl(key)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers


def _tell(place: asyncio.Future[Read], value: Any, left_ms: Any) -> None:
    """A key of another type is an error of its own, and nobody else's."""
    if place.done():
        return
    if isinstance(value, Exception):
        place.set_exception(value)
    else:
        place.set_result((value, left_ms))


def _once_more(error: Exception) -> Exception:
    """The same for each who waited: an exception that is raised in several places gathers all their tracebacks."""
    return type(error)(*error.args) if isinstance(error, RedisError) else error
