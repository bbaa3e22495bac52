"""The exact cache: search results in Redis by tenant and query. A fault of Redis is a miss and never fails a request.

docs/architecture/data.md describes keys, freshness and bounds. The key's secret keeps a reader of the keys from testing
guesses at queries. The age of an entry is computed from the key's remaining TTL, which Redis counts, and not from a
wall clock. A result found with less effort never replaces a fresh one found with more.

A read gets min(`timeout_s`, a quarter of the budget) and no retry. After three failures in a row the breaker opens and
no request waits for Redis; a watcher pings it and closes the breaker. The breaker answers one question: does Redis
serve a read within `timeout_s`? So a slower answer to a write or a ping does not close it, and the timeout of a read
that had less time only triggers a ping.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.contracts.search import Passage
from services.core.breaker import Breaker, BreakerState, Change
from services.retrieval.deadline import DeadlineExceeded, with_deadline
from services.retrieval.freshness import due_early, ttl_jitter
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.read_batcher import ReadBatcher
from services.retrieval.search_params import SearchParams
from services.runtime.log import Log
from services.runtime.ordered import OrderedSet

PREFIX = "weir:retrieval:3:"
MAX_ENTRY_BYTES = 262_144
MAX_WRITES = 64  # concurrent writes; more are dropped
WRITE_TIMEOUT_S = 0.25  # no request waits for a write
WATCH_EVERY_S = 1.0
SETTLE_EVERY_S = 0.1  # least time from one ping to the next
SHARE_OF_BUDGET = 0.25

T = TypeVar("T")

# Store ARGV[1] for ARGV[2] ms, unless the key holds a fresh entry of corpus version ARGV[3] or later, found with more
# effort than ARGV[4]. ARGV[5] is the key's share of its TTL. The key may hold anything, hence the pcall.
UNLESS_FULLER = """
local is_read, is_fuller = pcall(function()
  local entry = cmsgpack.unpack(redis.pcall('GET', KEYS[1]))
  local version, fresh_s, life_s, effort = entry[3], entry[4], entry[5], entry[7]
  local age_s = life_s - redis.call('PTTL', KEYS[1]) / 1000
  return effort > tonumber(ARGV[4]) and version >= tonumber(ARGV[3]) and age_s < fresh_s * ARGV[5]
end)
if is_read and is_fuller then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""


class CacheEntry(msgspec.Struct, frozen=True, array_like=True):
    """A stored result: fresh for the first `fresh_s` of its `life_s`, and a fallback for the rest.

    `cost_s` is how long the search took; a costly entry is refreshed earlier. `effort` and `depth` say how far it
    looked. `UNLESS_FULLER` depends on the order of the fields.
    """

    key: str
    tenant: str
    version: int
    fresh_s: float
    life_s: float
    cost_s: float
    effort: float
    depth: int
    results: list[Passage]


@dataclass(frozen=True, slots=True)
class CachedResult:
    """An entry that passed all checks. `refresh`: it is fresh, but this reader should search again."""

    results: list[Passage]
    params: SearchParams
    age_s: float
    fresh: bool
    refresh: bool = False


class Unreachable(Exception):
    """Redis did not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Everything that makes two queries equal. Redis sees its HMAC and never the query."""

    tenant: str
    query: str
    model: str
    hybrid: bool = True

    def digest(self, secret: bytes) -> str:
        """The HMAC-SHA-256 of all parts, each with its length before it, so that no two keys have the same bytes."""
        message = bytearray()
        for part in (self.model, self.tenant, f"{self.hybrid:d}", self.query):
            data = part.encode("utf-8")
            message += len(data).to_bytes(8, "big") + data
        return PREFIX + hmac.digest(secret, message, "sha256").hex()


class Cache:
    """Reads within a time allowance, writes in the background, and never raises."""

    def __init__(
        self,
        client: Redis,
        breaker: Breaker,
        *,
        timeout_s: float,
        stale_s: float,
        metrics: RetrievalMetrics,
        log: Log,
        secret: bytes = b"",
        chance: random.Random | None = None,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self._secret = secret
        self._chance = chance or random.Random()
        self._client = client
        connections = client.connection_pool.max_connections
        self._reads = ReadBatcher(client, exchanges=max(1, connections // 4))
        self._writing = asyncio.Semaphore(max(1, connections // 2))
        self._set_unless_fuller = client.register_script(UNLESS_FULLER)
        self._breaker = breaker
        self._timeout_s = timeout_s
        self._write_timeout_s = write_timeout_s
        self._stale_s = stale_s
        self._count = metrics.cache
        self._log = log
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(CacheEntry).decode
        self._writes: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._watcher: asyncio.Task[None] | None = None
        self._doubt = asyncio.Event()

    @property
    def up(self) -> bool:
        """Redis answered when last asked: the breaker is closed."""
        return self._breaker.state is BreakerState.CLOSED

    async def start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="redis-watch")

    async def stop(self) -> None:
        """Cancel running writes and close the connections."""
        running = [task for task in (self._watcher, *self._writes) if task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=self._write_timeout_s)
        await self._reads.stop()
        with contextlib.suppress(DeadlineExceeded, RedisError, OSError):
            await with_deadline(asyncio.get_running_loop().time() + self._write_timeout_s, self._client.aclose())

    async def get(
        self, key: CacheKey, *, params: SearchParams, version: int | None, ttl_s: float, budget_s: float
    ) -> CachedResult | None:
        """The valid entry under this key, or None.

        It is fresh if it is of corpus version `version`, covers `params`, and is younger than the key's share
        (`ttl_jitter`) of the lesser of `ttl_s` and the TTL it was stored with.
        """
        if not self.up:
            self._count["skipped"].inc()
            return None
        allowance_s = min(self._timeout_s, budget_s * SHARE_OF_BUDGET)
        digest = key.digest(self._secret)
        try:
            data, left_ms = await self._exchange(self._reads.read(digest), allowance_s)
        except (ResponseError, Unreachable):  # refused (a key of another type, no permission), or not answered
            self._count["error"].inc()
            return None
        kept = None if data is None else self._check(digest, key.tenant, data, left_ms, params, version, ttl_s)
        result = "miss" if data is None else "invalid" if kept is None else "hit" if kept.fresh else "stale"
        self._count[result].inc()
        return kept

    def put(
        self,
        key: CacheKey,
        results: list[Passage],
        *,
        params: SearchParams,
        version: int,
        ttl_s: float,
        cost_s: float = 0.0,
    ) -> None:
        """Store a complete result in the background; `cost_s` is how long it took. An empty result is not stored."""
        if ttl_s <= 0 or not results:
            return
        digest, life_s = key.digest(self._secret), ttl_s + self._stale_s
        entry = CacheEntry(digest, key.tenant, version, ttl_s, life_s, cost_s, params.effort, params.depth, results)
        data = self._encode(entry)
        if not self.up or len(self._writes) >= MAX_WRITES or len(data) > MAX_ENTRY_BYTES:
            self._count["not_stored"].inc()
            return
        task = asyncio.get_running_loop().create_task(self._write(entry, data))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _set(self, entry: CacheEntry, data: bytes) -> bool:
        life_ms = max(1, round(entry.life_s * 1000))
        async with self._writing:  # so that readers always find a connection
            if entry.effort == 1:  # no entry can have more
                return bool(await self._client.set(entry.key, data, px=life_ms))
            arguments: list[bytes | int | float] = [data, life_ms, entry.version, entry.effort, ttl_jitter(entry.key)]
            return bool(await self._set_unless_fuller(keys=[entry.key], args=arguments))

    async def _write(self, entry: CacheEntry, data: bytes) -> None:
        try:
            is_stored = await self._exchange(self._set(entry, data), self._write_timeout_s)
        except (ResponseError, Unreachable):  # full, read-only, or gone
            is_stored = False
        self._count["stored" if is_stored else "not_stored"].inc()

    def _check(
        self,
        digest: str,
        tenant: str,
        data: bytes,
        left_ms: int,
        asked: SearchParams,
        version: int | None,
        ttl_s: float,
    ) -> CachedResult | None:
        """The entry as a result; None unless this service stored it under this key, for this tenant, with a TTL."""
        if not isinstance(data, bytes) or len(data) > MAX_ENTRY_BYTES:
            return None
        try:
            entry = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):  # the latter for a string that is not UTF-8
            return None
        age_s = entry.life_s - left_ms / 1000
        if entry.key != digest or entry.tenant != tenant or not 0 < entry.effort <= 1:
            return None
        if left_ms < 0 or not -1 <= age_s < math.inf:
            return None
        params = SearchParams(entry.effort, entry.depth)
        fresh_for_s = min(entry.fresh_s, ttl_s) * ttl_jitter(digest) - age_s
        fresh = entry.version == version and fresh_for_s > 0 and params.covers(asked)
        refresh = fresh and due_early(fresh_for_s, entry.cost_s, 1 - self._chance.random())
        return CachedResult(entry.results, params, max(0.0, age_s), fresh, refresh)

    async def _exchange(self, work: Coroutine[Any, Any, T], allowance_s: float) -> T:
        """Run one exchange with Redis and report it to the breaker. Raises `Unreachable` or `ResponseError`."""
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await with_deadline(asked_at + allowance_s, work)
        except ResponseError:
            self._answered(asked_at)
            raise
        except (DeadlineExceeded, RedisConnectionError, RedisTimeoutError, RedisError, OSError) as error:
            is_late = isinstance(error, DeadlineExceeded) and (error.loop_lagged or allowance_s < self._timeout_s)
            self._failed(asked_at, error, short_of_time=is_late)
            raise Unreachable from None
        self._answered(asked_at)
        return answer

    def _answered(self, asked_at: float) -> None:
        """Count a success only if a read could have waited this long."""
        now = asyncio.get_running_loop().time()
        if now - asked_at <= self._timeout_s:
            self._note(self._breaker.succeeded(now))

    def _failed(self, asked_at: float, error: Exception, *, short_of_time: bool) -> None:
        if short_of_time:
            self._doubt.set()
        else:
            self._note(self._breaker.failed(asyncio.get_running_loop().time(), asked_at=asked_at), error)

    async def _watch(self) -> None:
        """Ping Redis once a second, or sooner after a doubtful read, so that no request waits to close the breaker."""
        loop = asyncio.get_running_loop()
        while True:
            self._doubt.clear()
            if self._breaker.allow(loop.time()):
                with contextlib.suppress(ResponseError, Unreachable):
                    await self._exchange(self._ping(), self._write_timeout_s)  # may have to connect first
                    await self._exchange(self._ping(), self._timeout_s)
            await asyncio.sleep(SETTLE_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_EVERY_S - SETTLE_EVERY_S):
                    await self._doubt.wait()

    async def _ping(self) -> None:
        await self._client.ping()

    def _note(self, change: Change | None, error: Exception | None = None) -> None:
        if change is None:
            return
        if change.after is BreakerState.CLOSED:
            self._log.info("redis is up")
        elif change.before is BreakerState.CLOSED:
            self._log.warning("redis is down", error=type(error).__name__)
