"""What the doctor learns of a real store: its version, its policy, and which routers call the exchange."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from services.core.leases.exchange import ClassLevel, UsageReport
from services.router.config import RouterSettings
from services.router.leases.store import ValkeyExchange, routers_calling
from services.router.operating.sharedpool import CALLED_WITHIN_S, look, verdicts
from services.runtime.log import Log
from services.runtime.valkey import redis_client

NOBODY = "http://127.0.0.1:1"


def test_the_routers_that_call_are_heard_and_those_that_have_stopped_are_not(redis_url: str) -> None:
    async def main() -> None:
        client = redis_client(redis_url, timeout_s=10, connections=1, socket_timeout_s=10)
        exchange = ValkeyExchange(client, "m")
        assert await routers_calling(client, "m", CALLED_WITHIN_S) == set()
        for name in ("r0", "r1"):
            await exchange.call(UsageReport(name, (1, 1), "", (ClassLevel("default", 1.0, None),), ()))
        await exchange.call(UsageReport("r2", (1, 1), "", (), ()))
        keys = await client.keys("*")
        assert await routers_calling(client, "m", CALLED_WITHIN_S) == {"r0", "r1", "r2"}
        assert await routers_calling(client, "other", CALLED_WITHIN_S) == set()
        assert await routers_calling(client, "m", -1.0) == set(), "nobody has called in the future"
        assert await client.keys("*") == keys
        await client.aclose()

    asyncio.run(main())


def test_a_store_is_judged_by_what_it_says(redis_url: str) -> None:
    chosen: dict[str, Any] = {"exchange_url": redis_url, "workers": NOBODY, "router_port": 1, "router_name": "r1"}
    settings = RouterSettings(_env_file=None, **chosen)  # type: ignore[call-arg]
    seen = asyncio.run(look(settings, Log("router", "ERROR", io.BytesIO(), threaded=False)))
    assert isinstance(seen.store, dict)
    levels = {found.check: found.severity for found in verdicts(settings, seen)}
    assert levels["exchange"] == "ok"
    policy = seen.store["maxmemory_policy"]
    assert levels["exchange memory"] == ("ok" if policy == "noeviction" else "warn")
