"""A client of Valkey or Redis that bounds every wait. It needs the package `redis`, which not every service has."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig


def redis_client(url: str, *, timeout_s: float, connections: int, socket_timeout_s: float) -> Redis:
    """A client that waits `timeout_s` for one of its `connections` and `socket_timeout_s` for the server at most.

    It never retries. The library by itself waits up to 15 s.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timeout_s,
        socket_timeout=socket_timeout_s,
        socket_connect_timeout=socket_timeout_s,
        retry=Retry(NoBackoff(), 0),
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    return Redis.from_pool(pool)
