"""The connection of a lease: asks go to the worker one at a time, grants come as a stream.

The stream is the lease's life: both sides end the lease with it. An ask that is not answered ends the stream, since a
link that was cut may stay open for minutes without a byte. Only the last ask is kept while one is under way: values are
absolute, and what a router gives back is said until the worker confirms it.

Every wait has a limit: OPEN_TIMEOUT_S for the stream's head, the lease's time for an ask. The stream is opened again
after MIN_PAUSE_S, doubled up to MAX_PAUSE_S while it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.core.leases.messages import Ask
from services.core.leases.poolleases import PoolLeases
from services.core.leases.times import MIN_TTL_S
from services.router.upstreams.call import Lender
from services.router.workers.worker import Worker
from services.router.workers.workerlease import WorkerLease
from services.runtime.errors import place_of
from services.runtime.leasewire import grant_of, wire_ask
from services.runtime.log import Log
from services.runtime.upstream import UpstreamError, readable

OPEN_TIMEOUT_S = 1.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0


class LeaseLink:
    """`changed` is called when the stream has opened, a grant has arrived, or the lease has ended. It sets
    `worker.lease`.
    """

    def __init__(
        self, worker: Worker, leases: PoolLeases, *, changed: Callable[[LeaseLink], None], log: Log, rng: Random
    ) -> None:
        self.worker = worker
        self.leases = leases
        self.lease = worker.lease = WorkerLease(
            worker.lease_name, leases, self.send, is_of_desk=worker.spec.desk is not None
        )
        self.has_tried = asyncio.Event()
        """Set once the stream was opened (by a desk, once it has answered), or could not be."""
        self.last_grant: LeaseGrant | None = None
        self._changed = changed
        self._log = log
        self._rng = rng
        self._pending: Ask | None = None
        self._counts = 0
        self._is_pending = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._limit: asyncio.Timeout | None = None

    def start(self) -> None:
        """Open the stream, and open it again whenever it ends."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(), name="lease-stream"),
            loop.create_task(self._send_all(), name="lease-asks"),
        ]

    def farewell(self) -> Ask | None:
        """A last ask, for `stop`: to a desk, which would hold the slots of a router that left without a word."""
        if self.lease.is_up and self.lease.is_of_desk:
            return self.lease.ask_alone(asyncio.get_running_loop().time(), keep=self.lease.holding.uses)
        return None

    async def stop(self, last: Ask | None = None) -> None:
        """End the stream, and the lease with it. `last`: an ask to send before."""
        tasks, self._tasks = self._tasks, []
        if last is not None:
            await self._send(last)
        self.lease.is_up = False
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- asks

    def send(self, ask: Ask) -> None:
        """Send the ask, after the one that is under way. Without a stream it is dropped: no grant could come."""
        if not self.lease.is_up:
            return
        self._pending = ask
        self._is_pending.set()

    async def _send_all(self) -> None:
        while True:
            await self._is_pending.wait()
            self._is_pending.clear()
            ask, self._pending = self._pending, None
            if ask is not None:
                await self._send(ask)

    async def _send(self, ask: Ask) -> None:
        try:
            async with asyncio.timeout(max(MIN_TTL_S, ask.ttl_s)):
                grant = await self._lender.lease(self._message(ask))
        except (UpstreamError, TimeoutError) as error:
            self._lose(error)
        except Exception as error:  # a fault here must not end the leases for good
            self._log.error("an ask failed", worker=self.worker.name, traceback=place_of(error))
            self._lose(error)
        else:
            self._receive(grant)

    def _message(self, ask: Ask) -> LeaseAsk:
        """The ask as it is sent."""
        if not self.lease.is_of_desk:
            return wire_ask(ask)
        self._counts += 1
        return self.lease.message(ask, self._counts)

    def _lose(self, error: Exception) -> None:
        """The worker does not answer: end the stream."""
        self._pending = None
        if self._limit is not None:
            self._log.info("an ask was not answered", worker=self.worker.name, why=_why(error))
            self._limit.reschedule(asyncio.get_running_loop().time())
            self._limit = None

    # ---- grants

    async def _follow(self) -> None:
        pause_s, was_logged = MIN_PAUSE_S, False
        while True:
            before = self.last_grant
            try:
                await self._read_stream()
                why = f"the {'desk' if self.lease.is_of_desk else 'worker'} ended it"
            except (UpstreamError, TimeoutError) as error:
                why = _why(error)
            except Exception as error:  # a fault here must not end the leases for good
                self._log.error("reading grants failed", worker=self.worker.name, traceback=place_of(error))
                why = "see above"
            was_up = self._ended()
            if was_up or not was_logged:
                url = self.worker.spec.desk or self.worker.url
                self._log.warning("the lease has ended", worker=self.worker.name, url=url, why=why)
                was_logged = True
            pause_s = MIN_PAUSE_S if self.last_grant is not before else min(MAX_PAUSE_S, 2 * pause_s)
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))

    async def _read_stream(self) -> None:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            stream = await self._lender.grants(self.leases.borrower.router, self.lease.holding.epoch)
        try:
            self.lease.is_up = True
            if self.lease.is_of_desk:  # says how many slots there are, and is told what is in flight
                self.send(self.lease.ask_alone(asyncio.get_running_loop().time()))
            else:
                self.has_tried.set()
            self._follow_change()
            async with asyncio.timeout(None) as self._limit:
                while (grant := await stream.next()) is not None:
                    self._receive(grant)
        finally:
            stream.close()

    def _receive(self, grant: LeaseGrant) -> None:
        self.last_grant = grant
        self.has_tried.set()
        if self.lease.receive(asyncio.get_running_loop().time(), grant_of(grant)):
            self._follow_change()

    def _follow_change(self) -> None:
        """Say that the lease has changed. A fault of whoever follows it is logged, and does not end the lease."""
        try:
            self._changed(self)
        except Exception as error:
            self._log.error("a lease's change was not followed", worker=self.worker.name, traceback=place_of(error))

    def _ended(self) -> bool:
        """The stream is over, if there was one: nothing starts there. Returns whether it was open."""
        was_up, self.lease.is_up, self._limit, self._pending = self.lease.is_up, False, None, None
        self.has_tried.set()
        if was_up:
            self.lease.disconnect(asyncio.get_running_loop().time())
            self._follow_change()
        return was_up

    @property
    def _lender(self) -> Lender:
        return cast(Lender, self.worker.upstream)

    def __repr__(self) -> str:
        return f"<LeaseLink {'up' if self.lease.is_up else 'down'}: {self.lease!r}>"


def _why(error: Exception) -> str:
    return readable(str(error)) or type(error).__name__
