"""A router's calls of the exchange: five a second, none on the path of a request, and none that anybody waits for.

A call has `timeout_s` and no retry: what was not answered is sent with the next call, with its stamp, and added once.
After three failures in a row the breaker opens; then a probe is sent after 1, 2, 4 and each further `MAX_OPEN_S`. From
an age of `services.core.elsewhere.STALE_S` the router decides by its own figures, as without the exchange.

A router that is alone calls once a second, so that it sees another one within that time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from services.core.breaker import Breaker, BreakerState, Change
from services.core.leases.exchange import UsageAnswer, UsageReport
from services.core.leases.messages import Want
from services.core.leases.usage import UsedElsewhere
from services.router.leases.fault import StoreFault
from services.runtime.errors import place_of
from services.runtime.log import Log

PERIOD_S = 0.2
ALONE_PERIOD_S = 1.0
TIMEOUT_S = 0.05
MAX_OPEN_S = 5.0


class UsageStore(Protocol):
    """One pool's exchange, wherever it is. Raises StoreFault."""

    async def call(self, report: UsageReport) -> UsageAnswer: ...


class ReportLedger(Protocol):
    """What `UsageLedger` is here."""

    routers: int

    def report(self, now: float, wants: tuple[Want, ...]) -> UsageReport: ...

    def receive(self, now: float, answer: UsageAnswer) -> list[UsedElsewhere]: ...


class Exchanging:
    """One pool's exchange at one router.

    `wants` says what waits for a slot now. `charge` gets what other routers took from a tenant's rate limits.
    """

    def __init__(
        self,
        store: UsageStore,
        ledger: ReportLedger,
        *,
        wants: Callable[[], tuple[Want, ...]],
        charge: Callable[[UsedElsewhere], None],
        log: Log,
        period_s: float = PERIOD_S,
        alone_period_s: float = ALONE_PERIOD_S,
        timeout_s: float = TIMEOUT_S,
        breaker: Breaker | None = None,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._wants = wants
        self._charge = charge
        self._log = log
        self._period_s = period_s
        self._alone_period_s = alone_period_s
        self._timeout_s = timeout_s
        self._breaker = breaker or Breaker(max_open_s=MAX_OPEN_S)
        self._answered_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """The store answered when last asked: the breaker is closed."""
        return self._breaker.state is BreakerState.CLOSED

    @property
    def age_s(self) -> float:
        """Seconds since the last answer; infinity before the first one."""
        return asyncio.get_running_loop().time() - self._answered_at

    def start(self) -> None:
        """Begin to call. Raises RuntimeError if it has begun."""
        if self._task is not None:
            raise RuntimeError("the exchange has been started")
        self._task = asyncio.get_running_loop().create_task(self._run(), name="usage-exchange")

    async def stop(self) -> None:
        """End the calls, the one that is under way as well. The connections are the store's to close."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.exchange()
            except Exception as error:  # a fault here must not end the calls for good
                self._log.error("the exchange failed", traceback=place_of(error))
            period_s = self._period_s if self._ledger.routers > 1 else self._alone_period_s
            await asyncio.sleep(max(0.0, began + period_s - loop.time()))

    async def exchange(self) -> bool:
        """Make one call, unless the breaker is open. Returns whether there was an answer."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        if not self._breaker.allow(asked_at):
            return False
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._store.call(self._ledger.report(asked_at, self._wants()))
        except (StoreFault, TimeoutError) as error:
            self._note(self._breaker.failed(loop.time(), asked_at=asked_at), error)
            return False
        now = self._answered_at = loop.time()
        self._note(self._breaker.succeeded(now))
        for used in self._ledger.receive(now, answer):
            self._charge(used)
        return True

    def _note(self, change: Change | None, error: Exception | None = None) -> None:
        if change is None:
            return
        if change.after is BreakerState.CLOSED:
            self._log.info("exchange is up")
        elif change.before is BreakerState.CLOSED:
            self._log.warning("exchange is down", error=str(error) or type(error).__name__)
