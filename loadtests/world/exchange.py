"""The store through which a world's routers exchange what tenants were served: the pure class, and what goes wrong."""

from __future__ import annotations

import asyncio
from itertools import count

from services.core.leases.exchange import UsageAnswer, UsageExchange, UsageReport
from services.router.leases.fault import StoreFault

TRIP_S = 0.0003
FAR_S = 1000.0


class WorldExchange:
    """All pools' exchanges. `frozen`: calls are not answered. `gone`: they fail."""

    def __init__(self) -> None:
        self.frozen = self.gone = False
        self.lives = count()
        self.pools: dict[str, UsageExchange] = {}

    def of(self, pool: str) -> PoolExchange:
        return PoolExchange(self, pool)

    async def close(self) -> None:
        """A router has ended: there is nothing to close."""

    def begin_empty(self) -> None:
        """It has lost everything."""
        self.pools.clear()


class PoolExchange:
    """One pool's exchange, as a router calls it."""

    def __init__(self, store: WorldExchange, pool: str) -> None:
        self._store = store
        self._pool = pool

    async def call(self, report: UsageReport) -> UsageAnswer:
        """Raises StoreFault."""
        store = self._store
        await asyncio.sleep(FAR_S if store.frozen else TRIP_S)
        if store.gone:
            raise StoreFault("the store is gone")
        pool = store.pools.get(self._pool)
        if pool is None:
            pool = store.pools[self._pool] = UsageExchange(f"life {next(store.lives)}")
        answer = pool.call(asyncio.get_running_loop().time(), report)
        await asyncio.sleep(TRIP_S)
        return answer
