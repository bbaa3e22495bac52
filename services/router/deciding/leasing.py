"""One of several routers: it borrows slots of the workers, and tells the others what its tenants were served.

`core.leases` decides; here are the event loop's parts. A change of the queue or of the slots is followed, once in each
turn of the loop, by the asks that it calls for. Each TICK_S the leases are prolonged. Nothing here is awaited by a
request: a slot that must be borrowed first comes like one that becomes free.

A worker is borrowed for the first pool that it serves; a request of another pool may use what is lent.
See docs/architecture/mechanisms/several-routers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Protocol

from services.core.leases.borrower import Asks, Wants
from services.core.leases.poolleases import PoolLeases
from services.core.leases.usage import UsedElsewhere
from services.router.deciding.dispatcher import Dispatcher
from services.router.leases.exchanging import Exchanging, UsageStore
from services.router.leases.fault import StoreFault
from services.router.tenancy.rates import Rate
from services.router.workers.leasedfleet import LeasedFleet
from services.router.workers.leaselink import LeaseLink
from services.router.workers.worker import Worker
from services.runtime.log import Log

TICK_S = 0.05

RateOf = Callable[[str], Rate | None]
"""The rate limit of a tenant, if it has one."""


class UsageStores(Protocol):
    """The exchanges of all pools."""

    def of(self, pool: str) -> UsageStore: ...

    async def close(self) -> None:
        """Close the connections. Raises StoreFault."""


class PoolSharing:
    """One pool: its leases and its exchange."""

    def __init__(self, leases: PoolLeases, exchanging: Exchanging) -> None:
        self.leases = leases
        self.exchanging = exchanging
        self.slots = -1
        """As the scheduler was told last."""


class Leasing:
    """One per router. `clock_ms`: milliseconds since 1970, read once at the start."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        fleet: LeasedFleet,
        *,
        name: str,
        clock_ms: Callable[[], int],
        stores: UsageStores,
        rate_of: RateOf,
        log: Log,
        rng: Random,
    ) -> None:
        self.name = name
        self.links: dict[Worker, LeaseLink] = {}
        self.pools: dict[str, PoolSharing] = {}
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._epoch = 0
        self._clock_ms = clock_ms
        self._stores = stores
        self._rate_of = rate_of
        self._log = log
        self._rng = rng
        self._taken: dict[str, tuple[Rate | None, int, float]] = {}
        """By tenant: its rate, and what that had taken at the last report."""
        self._touched: dict[str, None] = {}  # pools to settle once this turn of the loop is over
        self._by_name: dict[str, LeaseLink] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    # ---- life

    async def start(self) -> None:
        """Borrow from now on; returns once each worker's stream was opened, or could not be. Call it once the workers
        have been probed.
        """
        self._epoch = self._clock_ms()
        self._fleet.on_change(self._fleet_changed)
        self._fleet.on_touch(self._touch)
        self._fleet_changed()
        self._tick()
        await asyncio.gather(*(link.has_tried.wait() for link in self.links.values()))

    async def stop(self) -> None:
        """End all leases and calls."""
        if self._ticker is not None:
            self._ticker.cancel()
        links, self.links = list(self.links.values()), {}
        await asyncio.gather(
            *(link.stop(link.farewell()) for link in links),
            *(pool.exchanging.stop() for pool in self.pools.values()),
            *self._ending,
        )
        with suppress(StoreFault):
            await self._stores.close()

    # ---- workers

    def _fleet_changed(self) -> None:
        """Workers, models, health or slots changed."""
        fleet = self._fleet
        for worker in fleet.workers:
            if worker.is_shared and worker.pools and worker not in self.links:
                self._borrow_from(worker)
        self._dispatcher.capacity_changed()
        for pool in self.pools:
            self._touch(pool)

    def _borrow_from(self, worker: Worker) -> None:
        leases = self._pool(worker.pools[0]).leases
        leases.borrower.join(_now(), worker.lease_name, worker.announced_slots)
        link = LeaseLink(worker, leases, changed=self._lease_changed, log=self._log, rng=self._rng)
        self.links[worker] = self._by_name[link.lease.name] = link
        link.start()

    def _leave(self, worker: Worker) -> None:
        link = self.links.pop(worker)
        del self._by_name[link.lease.name]
        last = link.farewell()
        link.leases.borrower.leave(_now(), link.lease.name)
        ending = asyncio.get_running_loop().create_task(link.stop(last), name="lease-end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _pool(self, name: str) -> PoolSharing:
        known = self.pools.get(name)
        if known is None:
            scheduler = self._dispatcher.scheduler
            leases = PoolLeases(self.name, self._epoch, scheduler, name, self._rng.random)
            wants = partial(self._wants_to_report, name)
            exchanging = Exchanging(
                self._stores.of(name), leases.ledger, wants=wants, charge=self._charge, log=self._log
            )
            known = self.pools[name] = PoolSharing(leases, exchanging)
            exchanging.start()
        return known

    # ---- slots

    def _lease_changed(self, link: LeaseLink) -> None:
        """A stream has opened, a grant has arrived, or a lease has ended: start what may start."""
        now, leases, grant = _now(), link.leases, link.last_grant
        self._fleet.review(link.worker)
        self._fleet.granted(link.worker)
        if grant is not None and not leases.ledger.elsewhere.is_fresh(now):
            leases.level.receive(now, grant.lowest)
        for pool in link.worker.pools:
            self._dispatcher.start_waiting(now, pool)
        self._touch(leases.pool.name)

    def _touch(self, pool: str) -> None:
        """What this router asks for may have changed: look once this turn of the loop is over."""
        if not self._touched:
            asyncio.get_running_loop().call_soon(self._settle)
        self._touched[pool] = None

    def _settle(self) -> None:
        touched, self._touched, now = self._touched, {}, _now()
        for name in touched:
            pool = self.pools.get(name)
            if pool is not None:
                self._send(pool.leases.borrower.settle(now, self._wants(now, name)))
                self._plan(now, name, pool)

    def _tick(self) -> None:
        now = _now()
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._fleet.lapse()
        for worker in [worker for worker in self.links if worker.leaving and not worker.inflight]:
            self._leave(worker)
        for name, pool in self.pools.items():
            pool.leases.ledger.forget_stale(now)
            self._send(pool.leases.borrower.refresh(now, self._wants(now, name)))
            self._plan(now, name, pool)

    def _wants(self, now: float, pool: str) -> Wants:
        """What waits for a slot."""
        return self.pools[pool].leases.wants(now, self._dispatcher.retries(pool), is_capped=self._is_capped)

    @property
    def _is_capped(self) -> bool:
        """Whether MAX_INFLIGHT would keep a slot from being used, but by a retry."""
        cap = self._dispatcher.cap
        return cap.inflight >= cap.cap

    def _plan(self, now: float, name: str, pool: PoolSharing) -> None:
        """Tell the scheduler how many slots to predict with, if that has changed."""
        slots = pool.leases.plan(now)
        if slots != pool.slots:
            pool.slots = self._fleet.planned[name] = slots
            self._dispatcher.plan(now, name)

    def _send(self, asks: Asks) -> None:
        for name, ask in asks:
            link = self._by_name[name]
            if ask.keep is not None:  # slots go back with it, and must not be offered before it is answered
                self._fleet.granted(link.worker)
            link.send(ask)

    # ---- the exchange

    def _wants_to_report(self, pool: str) -> Wants:
        """Before each report: count what rate limits have taken, and say what waits. What MAX_INFLIGHT holds back does
        not wait for a slot: with a retry beside it, its tenants would hold back V at all routers.
        """
        self._count_taken(self.pools[pool].leases)
        wants = self._wants(_now(), pool)
        return () if self._is_capped else wants

    def _count_taken(self, leases: PoolLeases) -> None:
        """What a tenant's rate has taken since the last report of any pool goes into this one."""
        drr = self._dispatcher.scheduler.drr
        for id, tenant in list(drr.tenants.items()):
            rate = self._rate_of(id)
            if rate is None:
                continue
            before, requests, tokens = self._taken.get(id, (None, 0, 0.0))
            if before is not rate:  # its limit has been changed: it begins with a full bucket here
                requests, tokens = 0, 0.0
            if (requests, tokens) != (rate.taken_requests, rate.taken_tokens):
                flow = drr.flow(leases.pool, tenant)
                leases.ledger.add_taken(flow, rate.taken_requests - requests, rate.taken_tokens - tokens)
            self._taken[id] = rate, rate.taken_requests, rate.taken_tokens

    def _charge(self, used: UsedElsewhere) -> None:
        """Other routers took this from the tenant's rate."""
        rate = self._rate_of(used.tenant)
        if rate is not None:
            rate.take_elsewhere(_now(), used.requests, used.tokens)

    def __repr__(self) -> str:
        up = sum(link.lease.is_up for link in self.links.values())
        return f"<Leasing {self.name}/{self._epoch}: {up} of {len(self.links)} workers, pools {list(self.pools)}>"


def _now() -> float:
    return asyncio.get_running_loop().time()
