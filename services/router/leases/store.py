"""The exchange in Valkey or Redis (5 or later): one script, five keys in one hash slot, one round trip a call.

    weir:exchange:2:{pool}:state, :sums, :received, :active, :weights        `exchange.lua` says what they hold

The number is that of the layout. EVALSHA names the script by its checksum, so routers of two versions call each their
own. A server without the script gets it within the same call.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.core.leases.exchange import UsageAnswer, UsageReport
from services.router.leases.exchanging import TIMEOUT_S
from services.router.leases.fault import StoreFault
from services.runtime.valkey import redis_client

PREFIX = "weir:exchange:2:"
PARTS = ("state", "sums", "received", "active", "weights")
SCRIPT = Path(__file__).with_name("exchange.lua").read_text(encoding="utf-8")
RUN_BYTES = 8
CONNECTIONS = 8
SOCKET_TIMEOUT_S = 1.0
"""For opening a connection; a call has less."""


def keys_of(pool: str) -> list[str]:
    """The keys of a pool, in the order of PARTS."""
    return [f"{PREFIX}{{{pool}}}:{part}" for part in PARTS]


class ValkeyExchange:
    """One pool's exchange. `client` bounds every wait (`services/runtime/valkey.py`); the caller bounds the call."""

    def __init__(self, client: Redis, pool: str) -> None:
        self.keys = keys_of(pool)
        self._client = client
        self._run_script = client.register_script(SCRIPT)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(UsageAnswer).decode

    async def call(self, report: UsageReport, *, now: float | None = None, new_run: str = "") -> UsageAnswer:
        """Add the report and read the sums. Raises StoreFault.

        A run that begins with this call gets a random name. `now`, in seconds, and `new_run` are for tests.
        """
        new_run = new_run or secrets.token_hex(RUN_BYTES)  # for each call: a store that restarts twice has three runs
        arguments: list[bytes | str] = [self._encode(report), new_run, "" if now is None else repr(now)]
        try:
            return self._decode(await self._run_script(keys=self.keys, args=arguments))
        except (RedisError, OSError, msgspec.MsgspecError, TypeError, UnicodeError) as error:
            raise StoreFault(f"{type(error).__name__}: {error}") from error


class ValkeyExchanges:
    """The exchanges of all pools, over CONNECTIONS connections to the store at `url`."""

    def __init__(self, url: str) -> None:
        self._client = redis_client(
            url, timeout_s=TIMEOUT_S, connections=CONNECTIONS, socket_timeout_s=SOCKET_TIMEOUT_S
        )

    def of(self, pool: str) -> ValkeyExchange:
        return ValkeyExchange(self._client, pool)

    async def close(self) -> None:
        """Close the connections. Raises StoreFault."""
        try:
            await self._client.aclose()
        except (RedisError, OSError) as error:
            raise StoreFault(f"{type(error).__name__}: {error}") from error


async def routers_calling(client: Redis, pool: str, within_s: float) -> set[str]:
    """The names of the routers that have called the exchange of this pool within so many seconds; it changes nothing.

    Two routers of one name are one here. Raises StoreFault.
    """
    (key, *_) = keys_of(pool)
    try:
        packed = cast("bytes | None", await client.get(key))
        seconds, microseconds = await client.time()
        state = {} if packed is None else msgspec.msgpack.decode(packed, type=dict[str, Any])
        levels, now = state.get("levels") or {}, seconds + microseconds / 1e6
        return {name for name, (called_at, *_) in levels.items() if now - called_at <= within_s}
    except (RedisError, OSError, msgspec.MsgspecError, TypeError, ValueError, AttributeError) as error:
        raise StoreFault(f"{type(error).__name__}: {error}") from error
